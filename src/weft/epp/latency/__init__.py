"""Latency prediction: models that learn from each response, in the picker's process, in bounded memory."""
