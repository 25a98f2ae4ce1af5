"""Training of models on text and on tasks."""
