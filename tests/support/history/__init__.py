"""The events of a group from sources other than `zkconsumer.history`, for comparisons with it."""
