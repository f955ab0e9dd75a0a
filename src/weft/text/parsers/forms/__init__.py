"""How one call is written: each form is a reader that a family sets up with its own marks."""
