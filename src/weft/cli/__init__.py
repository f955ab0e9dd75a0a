"""Command lines: converts arguments to options, creates the objects and connects them. The only package that knows
all others.
"""
