"""Blocks of the KV cache from one engine to another: leases, fetches, and the wire between them."""
