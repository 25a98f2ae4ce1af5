"""How much heads contribute to an output: layer-wise relevance propagation, its targets, and what is drawn of it."""
