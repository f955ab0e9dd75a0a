"""The pool of endpoints: their discovery and load data, and the objectives and model rewrites."""
