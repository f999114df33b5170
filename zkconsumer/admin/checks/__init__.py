"""What `doctor` looks for in one group, each a function from what was read to findings."""
