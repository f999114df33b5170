"""Brokers, their logs, and the offsets that they keep."""
