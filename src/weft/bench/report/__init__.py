"""Reports of a benchmark: figures, tables, plots, result files, comparisons."""
