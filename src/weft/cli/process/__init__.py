"""Processes of a command: signals, operating system limits, child processes and state files."""
