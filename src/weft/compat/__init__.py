"""Command lines of other engines, translated to ours."""
