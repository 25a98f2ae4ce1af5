"""From a name to a model: loading, and which kinds are known."""
