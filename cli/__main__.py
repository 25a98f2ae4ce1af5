"""`python -m headlens_cli`."""

from .app import main

main()
