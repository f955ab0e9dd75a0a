"""The vocabulary every other package shares: values, errors, configuration, the EngineClient."""
