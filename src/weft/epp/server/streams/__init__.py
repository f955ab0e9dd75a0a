"""Streams of ext_proc: each has the messages about an HTTP request and its response."""
