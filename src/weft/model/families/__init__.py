"""Families of models: turn config.json into a `ModelSpec`, with one table row per family."""
