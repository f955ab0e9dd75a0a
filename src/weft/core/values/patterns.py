"""What regular expressions share."""

import re

# The last alternative of a possessive group, and never true. Before Python 3.11.5 a try that fails half-way moves
# the end of the match (python/cpython#106052); the next alternative, which this is, puts it back.
NEVER = r"|(?!)"
NEVER_BYTES = NEVER.encode()

# Names of tools: those of functions, and of tools behind gateways, which join names with these characters.
TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
TOOL_NAME_RULE = "1 to 128 letters, digits and characters of _ . : / -"
