"""Command-line arguments: flags, sizes, and settings from files and the environment."""
