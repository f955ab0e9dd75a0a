"""Plugins, grouped by kind in files and folders. Each file declares its plugins, and `registry` finds the files."""
