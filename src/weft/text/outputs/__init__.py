"""Outputs of the engine combined to what a caller reads: text, stop strings, logprobs."""
