"""`weft batch`: the requests of a file."""
