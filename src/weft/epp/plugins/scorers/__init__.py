"""Scorers: plugins that give every candidate a score from 0 (worst) to 1 (best)."""
