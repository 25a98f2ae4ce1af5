"""The command line of headlens."""
