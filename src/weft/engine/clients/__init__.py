"""Clients of engines: of an engine on a thread, of one in a child process, and of a changing number of engines."""
