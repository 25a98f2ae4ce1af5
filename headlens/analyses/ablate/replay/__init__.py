"""Ablation of single heads that goes on from the activations of the intact pass."""
