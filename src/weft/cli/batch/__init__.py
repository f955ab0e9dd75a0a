"""`weft batch`: answers the requests of a batch file."""
