"""Models that need no download: a small trained model in the package, and models made in memory."""
