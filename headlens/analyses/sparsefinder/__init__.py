"""Prediction of the sparsity pattern of entmax attention."""
