"""The bundled default corpus."""
