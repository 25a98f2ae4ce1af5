"""Statistics: bootstrap, paired tests, proportions, means, seeds."""
