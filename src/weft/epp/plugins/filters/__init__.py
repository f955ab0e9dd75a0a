"""Filters: each drops the endpoints that cannot or should not serve a request."""
