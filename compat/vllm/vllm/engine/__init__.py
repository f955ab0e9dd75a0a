"""Engines for programs with an event loop, and their arguments."""
