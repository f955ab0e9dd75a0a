"""Scripts that make the models shipped with the package; never imported by it."""
