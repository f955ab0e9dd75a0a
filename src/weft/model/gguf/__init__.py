"""Models in a single file in llama.cpp's format (GGUF): weights, config and tokenizer."""
