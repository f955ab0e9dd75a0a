"""Connections of the HTTP server: their limits, and upgrades to WebSockets."""
