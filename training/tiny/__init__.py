"""The corpus, tokenizer and training of the model `embedded:tiny`."""
