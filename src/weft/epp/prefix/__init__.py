"""Who holds which prefix in its KV cache: hashing, the two indexes, and the events that feed one of them."""
