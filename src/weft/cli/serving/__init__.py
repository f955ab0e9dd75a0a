"""`weft serve`: starts engines and servers with the given flags."""
