"""Checkpoints of rounded weights: which are read, how each packs its numbers, and what these mean."""
