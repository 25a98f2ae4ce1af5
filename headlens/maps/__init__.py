"""Attention maps of single sentences: as they are measured, kept and drawn."""
