"""Observers: what is measured of every head."""
