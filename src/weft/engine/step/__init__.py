"""The last part of a step, sampling or pooling, and the limits on the size of a step."""
