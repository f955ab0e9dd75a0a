"""Servers of tools that speak the Model Context Protocol: which there are, what they have, and calls of it."""
