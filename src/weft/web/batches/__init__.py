"""Files, and batches of requests that run behind the requests of callers: OpenAI's and Anthropic's."""
