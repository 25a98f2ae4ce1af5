"""Tasks: examples with answers, how a model is asked, and how its answers are scored, one example at a time."""
