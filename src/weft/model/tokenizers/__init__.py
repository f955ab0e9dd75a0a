"""Tokenizer files of a checkpoint: reading, checks, and tests in a child process."""
