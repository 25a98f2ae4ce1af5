"""Edits: what can be changed in every head."""
