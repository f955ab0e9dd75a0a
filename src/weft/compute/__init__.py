"""Computation of steps: the `Runner` protocol and its implementations. This package knows no scheduling."""
