"""Several API servers in front of the same engines: the messages between API servers and supervisor, and both sides."""
