"""Files of the embedded default task."""
