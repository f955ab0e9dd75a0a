"""Configuration: options that a user gives, and the frozen values that are decided from them."""
