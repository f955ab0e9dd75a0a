"""Models that need no download: one trained toy in the package, and two made in memory."""
