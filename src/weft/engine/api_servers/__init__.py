"""Several API servers before the same engines: the channel to their supervisor, and both its ends."""
