"""Responses of OpenAI's Responses API over a WebSocket: requests in, their events out, in lanes."""
