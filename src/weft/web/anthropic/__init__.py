"""Anthropic's /v1/messages and the calls beside it, as endpoints."""

from weft.web.anthropic.messages import count_tokens, create_message, render_message

ENDPOINTS = (create_message, render_message, count_tokens)
