"""Scorers: each gives every candidate a number from 0 (worst) to 1 (best)."""
