"""Front half of an engine client, which lives with the callers: it sends requests and hands out their outputs."""
