"""Which endpoint has which prefix in its KV cache: hashes, the two indexes, and the events that feed one of them."""
