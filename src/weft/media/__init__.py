"""Media of prompts: from sources that callers name to bytes that an engine decodes."""
