"""Differentiable attention masks (SparseBERT)."""
