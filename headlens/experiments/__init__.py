"""One recipe per command, callable from Python."""
