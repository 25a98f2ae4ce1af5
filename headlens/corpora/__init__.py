"""Sentences, trees, parallel text, and their way into batches."""
