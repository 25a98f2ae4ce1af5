"""Figures: parts that the figures of several analyses use."""
