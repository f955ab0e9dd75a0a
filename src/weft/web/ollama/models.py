"""/api/tags, /api/ps, /api/show and /api/version: facts of the served model, in Ollama's words."""

import hashlib
from typing import Any

from weft.core.config.engine import ModelConfig
from weft.core.errors import BadRequest
from weft.core.values.media import takes
from weft.schema.ollama import (
    OllamaDetails,
    OllamaModel,
    OllamaModels,
    OllamaShowBody,
    OllamaShown,
    OllamaVersion,
)
from weft.web.http.endpoint import Answer, Call, Dialect, endpoint
from weft.web.inference.call import resolve_model
from weft.web.ollama.options import NAMES
from weft.web.ollama.stream import to_name
from weft.web.ollama.writer import to_text
from weft.web.served import ModelFacts

# Clients refuse servers of versions that lack a feature; this API has those of that version.
API_VERSION = "0.12.6"


@endpoint("GET /api/tags", dialect=Dialect.OLLAMA, answer=OllamaModels)
async def list_models(call: Call) -> Answer:
    """List the names that requests may give, in Ollama's words"""
    return OllamaModels(models=models_of(call.served.facts))


@endpoint("GET /api/ps", dialect=Dialect.OLLAMA, answer=OllamaModels)
async def list_running(call: Call) -> Answer:
    """List the models in memory, in Ollama's words"""
    return OllamaModels(models=models_of(call.served.facts))


@endpoint(
    "POST /api/show",
    dialect=Dialect.OLLAMA,
    body=OllamaShowBody,
    example={"verbose": False},
    answer=OllamaShown,
)
async def show_model(call: Call) -> Answer:
    """Show the facts of a model, in Ollama's words"""
    body: OllamaShowBody = call.body
    served = call.served
    name = body.model or body.name
    if not name:
        raise BadRequest("model", "model is missing")
    resolve_model(served, to_name(served, name))
    return shown(served.facts)


def shown(facts: ModelFacts) -> OllamaShown:
    """The answer of /api/show."""
    config = facts.model_config
    return OllamaShown(
        modelfile=f"FROM {config.served_model_name}\n",
        parameters="\n".join(
            f"{NAMES.get(key, key).removeprefix('options.'):<30} {value}"
            for key, value in config.default_sampling_params.items()
        ),
        template=facts.template or "",
        details=_details(config),
        model_info=_model_info(config),
        capabilities=_capabilities(facts),
        modified_at=to_text(facts.known_since),
    )


@endpoint("GET /api/version", dialect=Dialect.OLLAMA, answer=OllamaVersion, uses_model=False)
async def get_version(_call: Call) -> Answer:
    """The version of Ollama whose API this is"""
    return OllamaVersion(version=API_VERSION)


def models_of(facts: ModelFacts) -> list[OllamaModel]:
    """A model and its adapters, in the form of /api/tags."""
    config = facts.model_config
    names = (*config.served_model_names, *facts.lora_requests)
    return [
        OllamaModel(
            name=name,
            model=name,
            modified_at=to_text(facts.known_since),
            digest=hashlib.sha256(f"{config.model}\0{config.dtype}\0{name}".encode()).hexdigest(),
            details=_details(config),
            context_length=config.max_model_len,
        )
        for name in names
    ]


def _details(config: ModelConfig) -> OllamaDetails:
    return OllamaDetails(
        format="gguf" if config.model.endswith(".gguf") else "safetensors",
        family=config.model_type,
        families=[config.model_type],
        quantization_level=config.dtype,
    )


def _model_info(config: ModelConfig) -> dict[str, Any]:
    family = config.model_type
    return {
        "general.architecture": family,
        f"{family}.context_length": config.max_model_len,
        f"{family}.vocab_size": config.vocab_size,
    }


def _capabilities(facts: ModelFacts) -> list[str]:
    """The features of the model that requests may use."""
    options, pooler, model = facts.options, facts.pooler, facts.model_config
    can_generate = pooler is None and model.speech is None
    has_tools = options.enable_auto_tool_choice and options.tool_call_parser is not None
    flags = {
        "completion": can_generate,
        "tools": can_generate and has_tools,
        "thinking": can_generate and options.reasoning_parser is not None,
        "vision": takes("image", model.media),
        "audio": takes("audio", model.media),
        "embedding": pooler is not None and "embed" in pooler.tasks,
        "rerank": pooler is not None and "classify" in pooler.tasks and len(pooler.labels) == 1,
        "classification": pooler is not None
        and "classify" in pooler.tasks
        and len(pooler.labels) != 1,
        "transcription": model.speech is not None,
    }
    return [name for name, is_there in flags.items() if is_there]


MODELS = (list_models, list_running, show_model, get_version)
