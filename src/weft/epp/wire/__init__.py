"""Protobuf messages to values and back; nothing else here knows generated code."""
