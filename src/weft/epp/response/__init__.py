"""Responses that are followed: usage, times and names in what model servers answer."""
