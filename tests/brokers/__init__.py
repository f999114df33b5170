"""Tests on every broker release; their servers end with this package."""
