"""A conversation turn, independent of the API: messages in, a stream of neutral deltas out."""
