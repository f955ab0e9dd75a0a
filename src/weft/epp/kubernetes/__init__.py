"""Kubernetes discovery: pods, InferencePools, objectives and leader election through the API server."""
