"""The second tier of the KV cache: blocks outside the pool, in memory or in files."""
