"""Rows of the table of families, by lineage."""
