"""HTTP/1.1 below servers and clients: connections of clients, TLS of both. `weft.wire` is the same for gRPC."""
