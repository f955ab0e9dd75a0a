"""The fields of the classes of vLLM that `weft.vllm` reads or fills, from an installed vLLM.

`python tools/vllm_fields.py > tests/vllm/fields_0_32.tsv` needs a Python with vLLM: what a new release
changes is seen there, and in the tests that compare our tables with it.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import FunctionType
from typing import Any

import msgspec

CLASSES = (
    "vllm.engine.arg_utils:AsyncEngineArgs",
    "vllm.inputs:TokensPrompt",
    "vllm.inputs.engine:MultiModalInput",
    "vllm.multimodal.inputs:PlaceholderRange",
    "vllm.config.multimodal:AudioDummyOptions",
    "vllm.config.multimodal:ImageDummyOptions",
    "vllm.config.multimodal:VideoDummyOptions",
    "vllm.sampling_params:SamplingParams",
    "vllm.sampling_params:StructuredOutputsParams",
    "vllm.sampling_params:RepetitionDetectionParams",
    "vllm.pooling_params:PoolingParams",
    "vllm.outputs:RequestOutput",
    "vllm.outputs:CompletionOutput",
    "vllm.outputs:PoolingRequestOutput",
    "vllm.logprobs:FlatLogprobs",
    "vllm.lora.request:LoRARequest",
    "vllm.v1.metrics.stats:SchedulerStats",
    "vllm.v1.metrics.stats:IterationStats",
    "vllm.v1.metrics.stats:PrefixCacheStats",
    "vllm.v1.metrics.stats:RequestSpecDecodeMetrics",
    "vllm.v1.spec_decode.metrics:SpecDecodingStats",
    "vllm.distributed.kv_events:BlockStored",
    "vllm.distributed.kv_events:BlockRemoved",
    "vllm.distributed.kv_events:AllBlocksCleared",
    "vllm.distributed.kv_events:KVEventBatch",
)
# Fields, and what is asked of an object beside them.
OBJECTS = (
    "vllm.config:CacheConfig",
    "vllm.config:LoRAConfig",
    "vllm.config:ModelConfig",
    "vllm.config:MultiModalConfig",
    "vllm.config:ParallelConfig",
    "vllm.config:PoolerConfig",
    "vllm.config:ProfilerConfig",
    "vllm.config:SchedulerConfig",
    "vllm.config:StructuredOutputsConfig",
    "vllm.config:VllmConfig",
)
# The methods that are called, by name and with what each takes.
CALLED = ("vllm.v1.engine.async_llm:AsyncLLM",)
# What is made by methods of its class: their names, and what each takes.
FACTORIES = ("vllm.multimodal.inputs:MultiModalFieldConfig",)
# What exists to be raised, with its bases: an error is known by the first of them that is in our table.
ERRORS = ("vllm.exceptions", "vllm.v1.engine.exceptions")

_ASKED = FunctionType | property
_SET = re.compile(r"\bself\.([a-z]\w*)(?:: [^=\n]+)? = ")


def fields_of(kind: type) -> list[str]:
    """Public fields, whatever the class is made with; of a plain one, what its constructor takes or sets."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif issubclass(kind, dict):  # a TypedDict, of whichever module
        names = list(kind.__annotations__)
    elif issubclass(kind, msgspec.Struct):
        names = [field.name for field in msgspec.structs.fields(kind)]
    else:
        parameters = list(inspect.signature(kind).parameters)
        names = parameters or list(vars(kind()))
    return sorted(name for name in names if not name.startswith("_"))


def read_vllm() -> Iterator[tuple[str, str]]:
    """Class and field; of errors, the classes they derive from."""
    for kind in _classes(CLASSES):
        for field in fields_of(kind):
            yield kind.__name__, field
    for kind in _classes(OBJECTS):
        asked = [name for name, value in vars(kind).items() if isinstance(value, _ASKED)]
        set_later = _SET.findall(inspect.getsource(kind))
        for field in sorted({*fields_of(kind), *asked, *set_later}):
            if not field.startswith("_"):
                yield kind.__name__, field
    for kind in _classes(CALLED):
        yield from _methods(kind, _ASKED)
    for kind in _classes(FACTORIES):
        yield from _methods(kind, staticmethod)
    for module in ERRORS:
        yield from _errors(module)


def _errors(module: str) -> Iterator[tuple[str, str]]:
    for name, kind in sorted(vars(import_module(module)).items()):
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == module:
            yield f"error {name}", " ".join(base.__name__ for base in kind.__mro__[1:-3])


def _classes(sources: Iterable[str]) -> Iterator[type]:
    for source in sources:
        module, _, name = source.partition(":")
        yield getattr(import_module(module), name)


def _methods(kind: type, of: Any) -> Iterator[tuple[str, str]]:
    """Each with what it takes; a property takes nothing but itself."""
    for method, value in sorted(vars(kind).items()):
        if not isinstance(value, of) or method.startswith("__"):
            continue
        taken = ("self",) if isinstance(value, property) else inspect.signature(value).parameters
        for field in taken:
            yield f"{kind.__name__}.{method}", field


def main() -> int:
    """Print the table."""
    print("class\tfield")
    for row in read_vllm():
        print("\t".join(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
