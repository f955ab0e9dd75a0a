"""Engines on several machines behind one server: the head node, the other nodes, and the link between them."""
