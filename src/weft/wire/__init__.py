"""Settings that all gRPC servers and clients of Weft share."""
