"""Protocols of the compute layer: `Backend`, `Runner`, `Sampler`, and the arrays of a step."""
