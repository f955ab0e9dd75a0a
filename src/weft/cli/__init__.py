"""argv to options; builds the objects and joins them. The only package that knows all the others."""
