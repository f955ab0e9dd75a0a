"""The reference backend: models in float32 numpy, written for readability."""
