"""What a model wrote, taken apart while it is written: thoughts, answer, tool calls."""
