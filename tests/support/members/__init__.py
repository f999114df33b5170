"""Members of a group, alone and together, and the evidence of what they did."""
