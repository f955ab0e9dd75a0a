"""Processes of a command: signals, limits of the system, child processes, files of state."""
