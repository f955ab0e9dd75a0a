"""Saturation detectors: how full the pool is, for shedding; each is also a filter of full endpoints."""
