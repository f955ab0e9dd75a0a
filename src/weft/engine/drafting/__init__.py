"""Speculative decoding: draft models, draft heads, and the sampler of their guesses."""
