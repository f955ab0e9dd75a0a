"""Steps on the card: input arrays, graphs, transfers."""
