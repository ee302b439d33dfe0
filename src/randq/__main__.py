"""The command `randq`, which is also `python -m randq`."""

import sys


def main() -> None:
    """Entry point. What it needs takes seconds to import, and Ctrl-C stops that too."""
    try:
        from randq.cli import main as command

        command()
    except KeyboardInterrupt:
        print("randq: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
