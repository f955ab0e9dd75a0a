"""Parsers of model output, while it is generated: reasoning, content and tool calls."""
