"""Models in one file in llama.cpp's format (GGUF): weights, config and tokenizer."""
