"""Prefix indexes: which endpoint has which blocks in its KV cache. Block hashes, the approximate and the precise index,
and the events that feed the precise one.
"""
