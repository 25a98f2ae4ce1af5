"""Which heads can go, and what that costs."""
