"""Ollama's API under /api: bodies to turns, events to lines of JSON."""

from weft.web.ollama.chat import create_chat
from weft.web.ollama.embed import create_embedding, create_embeddings
from weft.web.ollama.generate import create_text
from weft.web.ollama.models import MODELS

ENDPOINTS = (create_chat, create_text, create_embeddings, create_embedding, *MODELS)
