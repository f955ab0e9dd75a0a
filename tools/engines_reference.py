"""The reference page that compares Weft's engine with vLLM's, from the code of the engine clients."""

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

# The client classes of each engine, and the classes of their controls.
_ENGINES: Mapping[str, Sequence[type[OperatorCalls]]] = {
    "Weft's": (LocalClient, EngineControls, DataParallelClient),
    "vLLM's": (VllmClient, VllmControls),
    "`--remote`": (RpcClient,),
}
_ABOUT = (
    "This page compares the engines behind `weft serve`, `weft serve --engine vllm` and `weft serve --remote`, which "
    "have the same servers. It is generated from the code; [engines.md](../engines.md) explains the differences."
)
_OPTIONS = (
    "The table shows what `--engine vllm` does with each engine option of Weft. On the command line, a flag that "
    "vLLM's engine has too is passed to vLLM's own parser unchanged, whatever the table says."
)


def engines_page() -> str:
    """Returns the page: calls, options and parameters."""
    return page(
        "Weft's engine and vLLM's",
        _ABOUT,
        "## Calls",
        "Some methods of `EngineClient` are optional. A call that an engine lacks is refused by name.",
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
    given = dict.fromkeys((*settings.SAME, *settings.OWN), "passed on unchanged")
    renamed = {ours: f"passed on as `{theirs}`" for ours, theirs in settings.RENAMED.items()}
    refused = {name: f"refused if set: {why}" for name, why in settings.REFUSED.items()}
    for name, what in (given | renamed | refused).items():
        yield f"`{spelled(name)}`", what


def _parameters() -> Iterator[Sequence[str]]:
    for name in SamplingParams.__struct_fields__:
        if name in params.REFUSED:
            yield f"`{name}`", f"refused: {params.REFUSED[name]}"
        elif name in params.DONE_HERE:
            yield f"`{name}`", "applied by Weft's server, as with Weft's engine"
        elif name in params.CHANGED:
            yield f"`{name}`", "converted to vLLM's form"
        else:
            yield f"`{name}`", "passed on unchanged"


def _constraints() -> Iterator[Sequence[str]]:
    refused = params.REFUSED_OF_CONSTRAINTS
    for name in StructuredOutputsParams.__struct_fields__:
        yield f"`{name}`", f"refused: {refused[name]}" if name in refused else "passed on unchanged"
