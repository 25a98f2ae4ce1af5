"""Fixed, learned and graph attention masks, and training under them."""
