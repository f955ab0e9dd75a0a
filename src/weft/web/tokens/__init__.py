"""Tokens in and out (/inference/v1/generate), and a text with what follows it (/generate)."""

from weft.web.tokens.generate import generate
from weft.web.tokens.simple import simple_generate

ENDPOINTS = (generate, simple_generate)
