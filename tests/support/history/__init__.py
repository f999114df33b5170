"""What happened to a group, by other sources than `zkconsumer.history`, and comparisons."""
