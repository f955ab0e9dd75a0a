"""What an answer may look like: grammars, structural tags, and thoughts that come before."""
