"""Ablation of single heads that reuses the activations of the intact pass."""
