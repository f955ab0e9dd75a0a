"""Quantized checkpoints: supported methods, and how each packs its numbers."""
