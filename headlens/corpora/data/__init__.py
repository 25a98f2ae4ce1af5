"""The embedded default corpus."""
