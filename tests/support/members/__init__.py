"""Members of a group, alone or together, and the evidence of what they did."""
