"""Tests on every release of the broker; their servers end with this package."""
