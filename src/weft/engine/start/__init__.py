"""The start of an engine: free memory, pool size, CPUs, and the resolved configuration."""
