"""`python -m zkconsumer`."""

from zkconsumer.cli import main

if __name__ == "__main__":
    main()
