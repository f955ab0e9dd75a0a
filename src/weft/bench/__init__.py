"""Load tests of servers and engines, and their results: `weft bench`."""
