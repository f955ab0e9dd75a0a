"""Endpoints around the APIs: probes, facts, tokens as text, control, and what is refused by name."""
