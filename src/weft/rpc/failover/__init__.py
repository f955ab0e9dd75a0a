"""Requests of lost servers: which servers can continue them, and how they continue."""
