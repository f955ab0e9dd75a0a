"""The gRPC server that Envoy calls, its limits and health checks, and the pages of the metrics port."""
