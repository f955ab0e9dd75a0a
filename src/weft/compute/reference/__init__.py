"""The reference backend: models in float32 numpy, written to be read."""
