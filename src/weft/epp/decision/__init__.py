"""Decides on the endpoint of a request: plugins in profiles, and a record of their results."""
