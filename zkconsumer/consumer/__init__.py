"""What the user holds: the connector, its coordinator thread, and the streams."""
