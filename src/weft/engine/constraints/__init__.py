"""Constraints on answers: grammars, structural tags, and the reasoning that precedes a constrained answer."""
