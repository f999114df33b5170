"""Judges programs of other people as members of a simulated group."""
