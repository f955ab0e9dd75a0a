"""Models on the Hub: their short names, and the download of their files."""
