"""Vocabulary that every other package shares: values, errors, configuration and `EngineClient`."""
