"""`python -m randq` is the command `randq`."""

from randq.cli import main

main()
