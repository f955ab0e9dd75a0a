"""The second tier of the KV cache: blocks outside of the pool, in memory or in files."""
