"""Endpoints besides the inference APIs: probes, server information, tokenization, control, and paths that are
refused.
"""
