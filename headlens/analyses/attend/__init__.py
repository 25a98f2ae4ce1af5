"""Attention maps of given sentences."""
