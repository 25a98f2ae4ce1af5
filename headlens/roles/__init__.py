"""From measures to labels."""
