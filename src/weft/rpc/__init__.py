"""The gRPC wire: `RpcServer` in front of an `EngineClient`, `RpcClient` as one on the far side."""
