"""`headlens probe`: how much of a dependency tree the attention of all heads together tells."""
