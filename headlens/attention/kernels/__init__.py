"""Attention kernels beside those of transformers."""
