"""Speculative decoding: draft models, draft heads, and the sampler of draft tokens."""
