"""Kafka's own code: consumers, tools and assignors that run in a JVM."""
