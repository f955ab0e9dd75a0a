"""Arithmetic in numpy, which the reference backend uses and with which kernels are compared."""
