"""Matrices on the card: products in the type of the model, in few bits, and by expert."""
