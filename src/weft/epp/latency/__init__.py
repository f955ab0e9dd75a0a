"""Latency prediction: models in the picker's process that learn from each response, in bounded memory."""
