"""Loggers of statistics."""
