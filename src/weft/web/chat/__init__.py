"""One conversation turn, whichever API asked for it: messages in, a stream of neutral deltas out."""
