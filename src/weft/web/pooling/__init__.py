"""Embeddings, pooling, classification, scores and rankings, as endpoints."""

from functools import partial

from weft.schema.pooling import (
    ClassifyAnswer,
    ClassifyBody,
    EmbeddingAnswer,
    EmbeddingBody,
    PoolingAnswer,
    PoolingBody,
    RerankAnswer,
    RerankBody,
    ScoreAnswer,
    ScoreBody,
)
from weft.web.http.endpoint import Endpoint
from weft.web.inference.call import for_model
from weft.web.pooling.embeddings import create_embeddings
from weft.web.pooling.pool import create_classification, create_pooling
from weft.web.pooling.score import create_ranking, create_score

# Clients of embeddings write an empty name where they mean the model that there is.
_for_model = partial(for_model, is_blank_none=True)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/v1/embeddings",
        handler=_for_model(create_embeddings),
        summary="One vector for each text",
        body=EmbeddingBody,
        example={"input": "The capital of France"},
        answer=EmbeddingAnswer,
    ),
    Endpoint(
        method="POST",
        path="/pooling",
        handler=_for_model(create_pooling),
        summary="What the model makes of each text, by task",
        body=PoolingBody,
        example={"input": "The capital of France"},
        answer=PoolingAnswer,
    ),
    Endpoint(
        method="POST",
        path="/classify",
        handler=_for_model(create_classification),
        summary="The class of each text, and the scores of all classes",
        body=ClassifyBody,
        example={"input": "The capital of France"},
        answer=ClassifyAnswer,
    ),
    *(
        Endpoint(
            method="POST",
            path=path,
            handler=_for_model(create_score),
            summary="How well two texts go together",
            body=ScoreBody,
            example={"queries": "capital of France", "documents": ["Paris", "Rome"]},
            answer=ScoreAnswer,
        )
        for path in ("/score", "/v1/score")
    ),
    *(
        Endpoint(
            method="POST",
            path=path,
            handler=_for_model(create_ranking),
            summary="Documents in the order in which they answer a query",
            body=RerankBody,
            example={"query": "capital of France", "documents": ["Paris", "Rome"]},
            answer=RerankAnswer,
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
)
