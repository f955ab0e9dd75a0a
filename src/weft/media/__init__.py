"""Media of prompts: from the sources that callers name to bytes that an engine decodes."""
