"""Tables, figures and run folders; nothing else draws or writes."""
