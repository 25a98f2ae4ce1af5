"""Relevance of heads to an output."""
