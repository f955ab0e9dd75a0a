"""`weft serve`: from the flags to servers that answer."""
