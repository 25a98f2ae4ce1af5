"""Predicting which attention weights entmax will leave at zero (Sparsefinder, Treviso et al. 2022)."""
