"""Talking to a server on the terminal."""
