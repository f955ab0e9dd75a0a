"""Forms of tool calls: each form is a reader that a family configures with its own markers."""
