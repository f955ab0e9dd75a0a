"""Models in one file, as llama.cpp reads them: weights, what its config says, and the tokenizer."""
