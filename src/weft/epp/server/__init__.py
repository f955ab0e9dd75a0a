"""The gRPC server that Envoy calls, its limits and health, and the pages beside it."""
