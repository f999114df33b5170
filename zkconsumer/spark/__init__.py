"""Spark data sources for legacy groups: reading topics, committing offsets, and tables of groups.
Requires `zkconsumer[spark]`.
"""
