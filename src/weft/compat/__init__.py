"""Translates the command lines of other engines to Weft's."""
