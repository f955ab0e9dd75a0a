"""Scheduling of sequences: which run in a step, with how many tokens, on which blocks; plain Python over integers."""
