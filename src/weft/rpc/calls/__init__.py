"""The calls of the `VllmEngine` service, one module for each group."""
