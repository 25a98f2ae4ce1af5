"""`python -m headlens_cli`."""

from headlens_cli.app import main

main()
