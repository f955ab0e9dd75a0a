"""Checks of callers' input, shared by all APIs: requests, schemas, pooling, adapters, media tensors."""
