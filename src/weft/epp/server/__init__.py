"""The gRPC server that Envoy asks, its limits and health, and the pages beside it."""
