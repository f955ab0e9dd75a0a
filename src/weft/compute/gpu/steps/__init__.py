"""Steps on the card: inputs, graphs, transfers."""
