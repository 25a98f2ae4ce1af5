"""The tables that commands write, each declared once: its columns, what they mean, and how they are checked."""
