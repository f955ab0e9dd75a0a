"""Weights of an engine: loading, cache of packed weights, shared memory, updates, adapters, sleep."""
