"""What regular expressions share."""

# The last alternative of a possessive group, and never true. Before Python 3.11.5 a try that fails half-way moves
# the end of the match (python/cpython#106052); the next alternative, which this is, puts it back.
NEVER = r"|(?!)"
NEVER_BYTES = NEVER.encode()
