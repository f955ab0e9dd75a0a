"""HTTP/1.1 code that servers and clients share: connections of clients, and TLS of both. `weft.wire` has the same for
gRPC.
"""
