"""Targets of a benchmark: servers over HTTP or gRPC, and engines in this process."""
