"""Terminal clients of a server: `weft chat` and `weft complete`."""
