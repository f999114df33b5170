"""Checks of the simulator itself."""
