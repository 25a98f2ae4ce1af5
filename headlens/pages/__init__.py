"""The HTML page and the writers of tables: parts that the pages of all analyses use."""
