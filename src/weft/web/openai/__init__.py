"""OpenAI's /v1/chat/completions and /v1/completions, as endpoints, and the prompts of both in tokens."""

from weft.web.openai.chat import create_chat_completion
from weft.web.openai.chat_batch import create_chat_batch
from weft.web.openai.completions import create_completion
from weft.web.openai.render import render_chat, render_completion

ENDPOINTS = (
    create_chat_completion,
    create_chat_batch,
    create_completion,
    render_chat,
    render_completion,
)
