"""The calls of the gRPC services, one module for each group."""
