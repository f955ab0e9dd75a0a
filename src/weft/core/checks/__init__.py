"""Checks of what callers send, once, for every way in: requests, schemas, pooling, adapters, media tensors."""
