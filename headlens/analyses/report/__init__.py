"""The HTML page of runs, and their figures again."""
