"""Filters: plugins that remove the endpoints that cannot or should not serve a request."""
