"""Several models behind one server: which are in memory, who uses them, and how requests find theirs."""
