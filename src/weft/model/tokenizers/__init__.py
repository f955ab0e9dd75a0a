"""Tokenizer files of a checkpoint: read, checked, and tried out in a child process."""
