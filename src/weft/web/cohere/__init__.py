"""Cohere's API, version 2, at vLLM's paths and at Cohere's own: chat and embeddings."""

from dataclasses import replace

from weft.web.cohere.cohere_chat import create_chat, render_chat
from weft.web.cohere.cohere_embed import create_embeddings

ENDPOINTS = (create_chat, replace(create_chat, path="/v2/chat"), render_chat)
POOLING = (create_embeddings,)
