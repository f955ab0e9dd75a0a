"""Transfer of KV blocks from one engine to another: leases, fetches, and the protocol."""
