"""Conversion between Weft's values and vLLM's, by field names and without side effects."""
