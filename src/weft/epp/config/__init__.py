"""Reads configuration files strictly into values."""
