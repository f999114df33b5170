"""The fixture of tests/cli that runs the command line."""

from cli.conftest import run, spawn

__all__ = ["run", "spawn"]
