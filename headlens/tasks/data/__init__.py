"""Files of the bundled default task."""
