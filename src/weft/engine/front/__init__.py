"""The half of an engine client that lives with the callers: requests in, outputs out."""
