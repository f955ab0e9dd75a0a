"""Quantized checkpoints: the supported methods, and their ways of packing numbers."""
