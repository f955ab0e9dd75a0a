"""Rows of the table of GGUF architectures, by lineage."""
