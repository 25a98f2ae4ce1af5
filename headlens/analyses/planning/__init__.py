"""What a command would do, with sizes and times, for `--dry-run`."""
