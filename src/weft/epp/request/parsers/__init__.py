"""Request parsers: one module for each API, and the table of all parsers."""
