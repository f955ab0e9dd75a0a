"""Data producers: compute once per request what filters, scorers and handlers then read."""
