"""Several API servers in front of the same engines: the channel to their supervisor, and both of its ends."""
