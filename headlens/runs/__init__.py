"""Run folders, progress, checkpoints and signals."""
