"""Plugins by kind, each in a file with its rows of the registry."""
