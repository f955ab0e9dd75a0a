"""Anthropic's /v1/messages and /v1/messages/count_tokens, as endpoints."""

from weft.web.anthropic.messages import count_tokens, create_message

ENDPOINTS = (create_message, count_tokens)
