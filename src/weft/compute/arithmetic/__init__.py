"""Arithmetic in numpy that the reference backend uses and that kernels are compared with."""
