"""Heads removed from weights, and the map of those that are left."""
