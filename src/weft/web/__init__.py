"""The HTTP server: OpenAI's and Anthropic's APIs, tokens in and out, and endpoints for operators."""
