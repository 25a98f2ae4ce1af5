"""The seam: the only folder that knows how transformers computes attention."""
