"""What several rooms of the suite share; see README.md."""
