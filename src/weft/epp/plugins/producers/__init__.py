"""Producers: plugins that compute data once per request for filters, scorers and handlers."""
