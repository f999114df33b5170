"""The consumer's runtime: the connector, the member's thread, and the streams."""
