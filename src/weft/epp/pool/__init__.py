"""The endpoints there are, what is known of them, and where that comes from."""
