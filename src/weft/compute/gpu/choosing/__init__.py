"""Sampling on the card: constraints, random choice, logprobs."""
