"""Engines on several machines behind one server: the head, its nodes, and the link between them."""
