"""The command `zkconsumer`, and `python -m zkconsumer`."""

import sys


def main() -> None:
    """Run the command line and exit; Ctrl-C has one exit code, even while modules are imported."""
    try:
        from zkconsumer.cli import main as run  # noqa: PLC0415 - the import can be interrupted

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
