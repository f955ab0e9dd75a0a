"""Names that programs import from vLLM's second architecture."""
