"""The command line, as tests/cli runs it."""

from cli.conftest import run, spawn

__all__ = ["run", "spawn"]
