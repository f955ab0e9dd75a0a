"""What an answer may look like: grammars, structural tags, and the reasoning that comes before."""
