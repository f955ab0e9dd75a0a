"""`LLM` and `AsyncLLM`: an engine inside a Python program."""
