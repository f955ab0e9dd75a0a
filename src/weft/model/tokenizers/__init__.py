"""Tokenizer files of a checkpoint: reads and checks them, and tries them out in a child process."""
