"""What every head does: metrics over a corpus, and roles."""
