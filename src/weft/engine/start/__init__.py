"""The start of an engine: free memory, size of the KV pool, CPUs, and the resolved configuration."""
