"""Configuration files to values, strictly."""
