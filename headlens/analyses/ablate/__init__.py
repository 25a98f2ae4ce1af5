"""What heads are worth: ablation of single heads, and pruning by ranking, search or importance."""
