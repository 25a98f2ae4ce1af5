"""`headlens probe`: how much of a dependency tree can be read off the attention of all heads."""
