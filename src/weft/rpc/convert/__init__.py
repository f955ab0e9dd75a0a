"""Protobuf messages to and from our values: pure functions, one module per direction and subject."""
