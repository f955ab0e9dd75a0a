"""Logs, metrics, spans and progress. Every series of the engine is declared here."""
