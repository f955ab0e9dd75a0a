"""The gRPC protocol: `RpcServer` serves an `EngineClient`, and `RpcClient` is an `EngineClient` of a remote server."""
