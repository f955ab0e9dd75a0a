"""What a model wrote, taken apart while it is written: reasoning, answer, tool calls."""
