"""Checkpoints: their facts, specs and tensors, and the models that ship with Weft."""
