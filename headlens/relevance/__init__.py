"""Head relevance: how much each head contributes to an output neuron, by layer-wise relevance propagation."""
