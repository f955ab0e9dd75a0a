"""Endpoint load from the model servers' own metrics."""
