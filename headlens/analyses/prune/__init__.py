"""Heads pruned by L0 gates while a model trains."""
