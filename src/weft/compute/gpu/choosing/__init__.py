"""Sampling on the card: constraints, draws, log-probabilities."""
