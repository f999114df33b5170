"""The groups, topics and proxies of the integration tests, used for severe faults."""

from integration.conftest import admin, crew, stack, topic, trap

__all__ = ["admin", "crew", "stack", "topic", "trap"]
