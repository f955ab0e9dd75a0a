"""Conversion between Weft's values and vLLM's: pure, by field names."""
