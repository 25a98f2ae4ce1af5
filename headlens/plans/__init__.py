"""What a command would do, how large it is, and about how long it takes: `--dry-run`."""
