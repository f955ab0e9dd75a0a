"""Blocks of the KV pool: counts, prefix cache, leases, states."""
