"""Tokens in and out (/inference/v1/generate), and text with its continuation (/generate)."""

from weft.web.tokens.generate import generate
from weft.web.tokens.simple import simple_generate

ENDPOINTS = (generate, simple_generate)
