"""Tasks: examples with answers, how a model answers them, and how the answers are scored, one example at a time."""
