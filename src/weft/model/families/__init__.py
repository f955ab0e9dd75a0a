"""Families of models: config.json to a `ModelSpec`, by one table row a family."""
