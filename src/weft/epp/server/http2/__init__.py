"""The gRPC server of the picker, on `h2`: calls with their messages, connections, and listening."""
