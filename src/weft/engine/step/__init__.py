"""The end of a step: sampling, pooling, and how large a step may be."""
