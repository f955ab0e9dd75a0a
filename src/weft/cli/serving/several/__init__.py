"""`weft serve` with several models: their list, their settings, and the servers in front of them."""
