"""Text to tokens and back: tokenizers, chat templates, prompts, and the output of requests."""
