"""Configuration: the user's options, and the frozen settings resolved from them."""
