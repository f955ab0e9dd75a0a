"""Encoders (BERT and its descendants) as checkpoints: spec, families, names of tensors."""
