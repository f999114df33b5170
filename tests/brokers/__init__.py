"""What every release of the broker must give; its servers end where this package ends."""
