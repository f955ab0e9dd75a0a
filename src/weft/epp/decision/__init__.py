"""Decides on the endpoint of each request with the plugins of a scheduling profile, and records the results."""
