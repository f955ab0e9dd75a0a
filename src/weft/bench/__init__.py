"""`weft bench`: load tests of servers and engines, and reports of their results."""
