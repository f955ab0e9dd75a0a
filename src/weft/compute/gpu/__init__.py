"""Models on one GPU: Triton kernels, with torch for memory, streams and graphs.

`backend`, and the modules that it imports at first (`card`, `sizes` and `supported`), work without torch.
"""
