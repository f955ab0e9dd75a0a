"""Code shared by all generating APIs: the call, parameters, usage, logprobs."""
