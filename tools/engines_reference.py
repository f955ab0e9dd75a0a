"""The page that compares Weft's engine with vLLM's, from the code that stands between servers and either."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tools.markdown import page, table
from weft.core.client import EngineClient
from weft.core.operator_calls import OperatorCalls
from weft.core.values.declare import spelled
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.local_client import LocalClient
from weft.engine.front.controls import EngineControls
from weft.rpc.client import RpcClient
from weft.vllm.client import VllmClient
from weft.vllm.controls import VllmControls
from weft.vllm.convert import params, settings

# For each engine its clients, and their controls.
_ENGINES: Mapping[str, Sequence[type[OperatorCalls]]] = {
    "Weft's": (LocalClient, EngineControls, DataParallelClient),
    "vLLM's": (VllmClient, VllmControls),
    "`--remote`": (RpcClient,),
}
_ABOUT = (
    "What `weft serve`, `weft serve --engine vllm` and `weft serve --remote` have behind the same servers. Why, and "
    "what cannot be read from code, is in [engines.md](../engines.md)."
)
_OPTIONS = (
    "How `--engine vllm` takes an option of ours. On the command line a flag that vLLM's engine has too goes to its "
    "own parser as it is, whatever this table says of ours."
)


def engines_page() -> str:
    """Calls, options and parameters."""
    return page(
        "Weft's engine and vLLM's",
        _ABOUT,
        "## Calls",
        "Methods of `EngineClient` that an engine may lack: without one the call is refused by its name.",
        table(("call", *_ENGINES), _calls()),
        "## Options of the engine",
        _OPTIONS,
        table(("option", "with vLLM's engine"), _options()),
        "## Parameters of sampling",
        table(("parameter", "with vLLM's engine"), _parameters()),
        "## Structured outputs",
        table(("field", "with vLLM's engine"), _constraints()),
    )


def _calls() -> Iterator[Sequence[str]]:
    for name, member in (vars(EngineClient) | vars(OperatorCalls)).items():
        if inspect.isfunction(member) and " unsupported(" in inspect.getsource(member):
            marks = ("yes" if _has(kinds, name) else "" for kinds in _ENGINES.values())
            yield (f"`{name}`", *marks)


def _has(kinds: Iterable[type[OperatorCalls]], name: str) -> bool:
    default = getattr(EngineClient, name)
    return any(getattr(kind, name, default) is not default for kind in kinds)


def _options() -> Iterator[Sequence[str]]:
    given = dict.fromkeys((*settings.SAME, *settings.OWN), "as it is")
    renamed = {ours: f"as `{theirs}`" for ours, theirs in settings.RENAMED.items()}
    refused = {name: f"refused when set: {why}" for name, why in settings.REFUSED.items()}
    for name, what in (given | renamed | refused).items():
        yield f"`{spelled(name)}`", what


def _parameters() -> Iterator[Sequence[str]]:
    for name in SamplingParams.__struct_fields__:
        if name in params.REFUSED:
            yield f"`{name}`", f"refused: {params.REFUSED[name]}"
        elif name in params.DONE_HERE:
            yield f"`{name}`", "done on this side, as with Weft's engine"
        elif name in params.CHANGED:
            yield f"`{name}`", "given as vLLM has it"
        else:
            yield f"`{name}`", "given as it is"


def _constraints() -> Iterator[Sequence[str]]:
    refused = params.REFUSED_OF_CONSTRAINTS
    for name in StructuredOutputsParams.__struct_fields__:
        yield f"`{name}`", f"refused: {refused[name]}" if name in refused else "given as it is"
