"""/api/tags, /api/ps, /api/show and /api/version: facts of the served model, in Ollama's words."""

import hashlib
from typing import Any

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
from weft.web.served import Served

# Clients refuse servers of versions that lack a feature; this API has those of that version.
API_VERSION = "0.12.6"


@endpoint("GET /api/tags", dialect=Dialect.OLLAMA, answer=OllamaModels)
async def list_models(call: Call) -> Answer:
    """List the names that requests may give, in Ollama's words"""
    return OllamaModels(models=_models(call.served))


@endpoint("GET /api/ps", dialect=Dialect.OLLAMA, answer=OllamaModels)
async def list_running(call: Call) -> Answer:
    """List the models in memory, in Ollama's words"""
    return OllamaModels(models=_models(call.served))


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
    config = served.client.model_config
    template = served.chat_template
    return OllamaShown(
        modelfile=f"FROM {config.served_model_name}\n",
        parameters="\n".join(
            f"{NAMES.get(key, key).removeprefix('options.'):<30} {value}"
            for key, value in config.default_sampling_params.items()
        ),
        template="" if template is None else template.source,
        details=_details(served),
        model_info=_model_info(served),
        capabilities=_capabilities(served),
        modified_at=to_text(served.started_at),
    )


@endpoint("GET /api/version", dialect=Dialect.OLLAMA, answer=OllamaVersion)
async def get_version(_call: Call) -> Answer:
    """The version of Ollama whose API this is"""
    return OllamaVersion(version=API_VERSION)


def _models(served: Served) -> list[OllamaModel]:
    config = served.client.model_config
    names = (*config.served_model_names, *served.client.lora_requests)
    return [
        OllamaModel(
            name=name,
            model=name,
            modified_at=to_text(served.started_at),
            digest=hashlib.sha256(f"{config.model}\0{config.dtype}\0{name}".encode()).hexdigest(),
            details=_details(served),
            context_length=config.max_model_len,
        )
        for name in names
    ]


def _details(served: Served) -> OllamaDetails:
    config = served.client.model_config
    return OllamaDetails(
        format="gguf" if config.model.endswith(".gguf") else "safetensors",
        family=config.model_type,
        families=[config.model_type],
        quantization_level=config.dtype,
    )


def _model_info(served: Served) -> dict[str, Any]:
    config = served.client.model_config
    family = config.model_type
    return {
        "general.architecture": family,
        f"{family}.context_length": config.max_model_len,
        f"{family}.vocab_size": config.vocab_size,
    }


def _capabilities(served: Served) -> list[str]:
    """The features of the model that requests may use."""
    options, pooler = served.options, served.client.info.pooler
    can_generate = pooler is None
    has_tools = options.enable_auto_tool_choice and options.tool_call_parser is not None
    flags = {
        "completion": can_generate,
        "tools": can_generate and has_tools,
        "thinking": can_generate and options.reasoning_parser is not None,
        "vision": takes("image", served.client.model_config.media),
        "embedding": pooler is not None and "embed" in pooler.tasks,
    }
    return [name for name, is_there in flags.items() if is_there]


MODELS = (list_models, list_running, show_model, get_version)
