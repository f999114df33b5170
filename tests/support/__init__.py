"""Helpers that several rooms of the suite share; README.md describes them."""
