"""The analyses, a folder each: method, recipe, tables, figures and page."""
