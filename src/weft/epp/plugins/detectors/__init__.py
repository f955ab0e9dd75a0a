"""Saturation detectors: plugins that compute how full the pool is. Each is also a filter that removes full
endpoints.
"""
