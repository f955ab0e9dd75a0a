"""The pool of endpoints: discovery, load data and objects."""
