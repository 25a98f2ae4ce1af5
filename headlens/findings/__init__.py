"""What is said of results, whatever command they come from: verdicts, notes, smoothness, predictions."""
