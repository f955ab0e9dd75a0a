"""Media of prompts, from where callers say they are to bytes that an engine decodes."""
