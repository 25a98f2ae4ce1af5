"""Papers again: their settings as commands, and their tables with our numbers beside the published ones."""
