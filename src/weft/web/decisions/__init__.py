"""Decisions: probabilities of the answers to questions about one input, read from the next token of each."""

from weft.web.decisions.openai import create_decisions
from weft.web.decisions.scoring import create_scores
from weft.web.decisions.systemone import create_answers

ENDPOINTS = (create_decisions, create_answers, create_scores)
