"""Logs, metrics, spans and progress. All metric series of the engine are declared in this package."""
