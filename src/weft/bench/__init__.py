"""Loads for servers and engines, and the figures of what came back: `weft bench`."""
