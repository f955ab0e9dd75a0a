"""The HTTP server: OpenAI's and Anthropic's APIs, tokens in and out, and what operators ask for."""
