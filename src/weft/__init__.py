"""Weft: an LLM inference engine and its serving stack."""

__version__ = "0.1.0"
