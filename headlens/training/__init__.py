"""Training: one loop, into which objectives plug."""
