"""Request parsers: one module for each API, and one table of all."""
