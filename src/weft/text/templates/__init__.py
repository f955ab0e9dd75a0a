"""Chat templates: messages to prompts, within bounds, in processes of their own."""
