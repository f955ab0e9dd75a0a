"""Building blocks of regular expressions."""

import re

# The last alternative of a possessive group; this alternative never matches. Before Python 3.11.5 an alternative that
# fails half-way moves the end of the match (python/cpython#106052); trying one more alternative restores the end.
NEVER = r"|(?!)"
NEVER_BYTES = NEVER.encode()

# Allowed names of tools: functions, and tools of gateways, which join several names with these characters.
TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
TOOL_NAME_RULE = "1 to 128 letters, digits and characters of _ . : / -"
