"""Embeddings, pooling, classification, scores and rankings, as endpoints."""

from dataclasses import replace

from weft.web.pooling.pool import create_classification, create_embeddings, create_pooling
from weft.web.pooling.score import create_ranking, create_score

ENDPOINTS = (
    create_embeddings,
    create_pooling,
    create_classification,
    create_score,
    replace(create_score, path="/v1/score"),
    create_ranking,
    replace(create_ranking, path="/v1/rerank"),
    replace(create_ranking, path="/v2/rerank"),
)
