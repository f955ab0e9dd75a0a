"""Computation of steps: the `Runner` protocol and its implementations. This package does not depend on scheduling."""
