"""Servers and engines under load: over HTTP, over gRPC, or in this process."""
