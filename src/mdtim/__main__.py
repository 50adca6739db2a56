"""Run the command line as `python -m mdtim`."""

from mdtim.cli import main

main()
