"""Requests and their responses as each API writes them: read, renamed, refused."""
