"""What every simulated world shares: the search of runs, the stage of stories, and the recorder."""
