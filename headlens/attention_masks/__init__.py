"""Which positions may attend to which: fixed patterns, masks that are learned, masks of a text, and their files."""
