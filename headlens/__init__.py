"""headlens: what every attention head does, and what it is worth."""
