"""Tool servers of the Model Context Protocol: their configuration, sessions, and calls of their tools."""
