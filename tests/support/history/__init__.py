"""The events of a group from other sources than `zkconsumer.history`, for comparisons."""
