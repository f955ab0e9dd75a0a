"""Policies of flow control: who is next, in which order, up to which saturation, and who is evicted."""
