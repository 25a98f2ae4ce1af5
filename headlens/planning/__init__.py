"""What a command would do, how large the job is and how long it takes: what every `--dry-run` says."""
