"""Clients of engines: on a thread, in a child process, several as one, more or fewer of them."""
