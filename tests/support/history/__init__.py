"""What happened to a group, from sources other than `zkconsumer.history`; and comparisons."""
