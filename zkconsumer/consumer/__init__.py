"""The consumer's runtime: the connector, its coordinator thread, and the streams."""
