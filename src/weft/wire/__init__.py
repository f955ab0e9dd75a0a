"""Settings of all gRPC servers and channels."""
