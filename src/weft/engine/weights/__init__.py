"""Weights of an engine: loading, packed caches, shared memory, updates, adapters, sleep."""
