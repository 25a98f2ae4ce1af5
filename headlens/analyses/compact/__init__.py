"""Heads removed from the weights."""
