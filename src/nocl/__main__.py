"""``python -m nocl`` is the command ``nocl``."""

from nocl.cli import main

if __name__ == "__main__":
    main()
