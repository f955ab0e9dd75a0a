"""Models on one GPU: Triton kernels, with torch for memory, streams and graphs.

`backend` and what it imports at first, `card`, `sizes` and `supported`, do without torch.
"""
