"""Checkpoints: their facts, decoder specs and tensors, and the models that ship with Weft."""
