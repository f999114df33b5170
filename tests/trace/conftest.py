"""The fixture that runs the command line as tests/cli does."""

from cli.conftest import run, spawn

__all__ = ["run", "spawn"]
