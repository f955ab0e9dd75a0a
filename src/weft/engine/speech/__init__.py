"""Speech to text on an engine of ours: a recording becomes requests, one window after the other."""
