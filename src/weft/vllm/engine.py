"""Starts vLLM's engine, and converts values to vLLM's types. Besides `speech_model.py`, the only module that imports
vLLM.
"""

import asyncio
import dataclasses
import json
import logging
import os
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import Metric

from weft.core.errors import BadRequest, ConfigError
from weft.core.extras import how_to_install
from weft.core.values.declare import spelled
from weft.core.values.media import MediaTensors, Modality, Tensor
from weft.core.values.types import LoRARequest, Request
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.vllm.convert.tensors import Item, ItemForm, layout, to_hashes
from weft.vllm.profiler import OneThread

log = logging.getLogger("weft.engine")

RELEASES = ("0.32", "0.33")
_NEEDED = " or ".join(RELEASES)
_SERIES = "vllm:"
_MERGED = "structured_outputs_config"  # this server sets a part of this structure
# Environment variables that vLLM reads when it is first imported.
_VARIABLES = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for the ready block
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_MAX_IMAGE_PIXELS": str(2**26),  # decoded, an image of this size takes 200 MB
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
}


class VllmSeries:
    """Prometheus collector of vLLM's metric series, from the registry that vLLM's loggers fill."""

    def collect(self) -> Iterator[Metric]:
        """Yields vLLM's series. Series about the process are left out, because Weft collects these."""
        return (family for family in REGISTRY.collect() if family.name.startswith(_SERIES))

    def describe(self) -> Iterator[Metric]:
        """Returns no series names, because vLLM's series do not exist before its engine."""
        return iter(())


def import_vllm() -> Any:
    """Imports and returns vLLM. Raises `ConfigError` if it is missing or of another release."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        vllm = import_module("vllm")
    except ImportError as error:
        raise ConfigError(
            f"--engine vllm needs vLLM {_NEEDED}: {how_to_install('vllm')} ({error})"
        ) from error
    if not vllm.__version__.startswith(tuple(f"{release}." for release in RELEASES)):
        raise ConfigError(
            f"--engine vllm needs vLLM {_NEEDED}, and {vllm.__version__} is installed"
        )
    return vllm


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Returns the flags of vLLM in `words`, read by vLLM's own parser."""
    given = _parse(words)
    if _MERGED in given:
        chosen, usual = given[_MERGED], type(given[_MERGED])()
        names = [field.name for field in dataclasses.fields(chosen) if field.init]
        given[_MERGED] = {
            name: getattr(chosen, name)
            for name in names
            if getattr(chosen, name) != getattr(usual, name)
        }
    return given


def _parse(words: Sequence[str]) -> dict[str, Any]:
    import_vllm()
    parser = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(
        prog="weft serve --engine vllm", add_help=False, exit_on_error=False
    )
    arguments = import_module("vllm.engine.arg_utils").AsyncEngineArgs
    parser = arguments.add_cli_args(parser)
    parser.set_defaults(**{action.dest: None for action in parser._actions})

    def refuse(message: str) -> None:
        raise ConfigError(f"vLLM: {message}")

    parser.error = refuse
    try:
        given = vars(parser.parse_args(list(words)))
    except ArgumentError as error:
        raise ConfigError(f"vLLM: {error}") from error
    return {name: value for name, value in given.items() if value is not None}


def start(settings: Mapping[str, Any], record: Callable[[int, Any, Any], None]) -> tuple[Any, str]:
    """Loads the weights; returns the `AsyncLLM` and vLLM's version. Raises `ConfigError` if vLLM refuses the settings.

    `record` gets the statistics of each step: the rank's number, its scheduler statistics, and its request statistics.
    """
    version = import_vllm().__version__
    arguments = import_module("vllm.engine.arg_utils").AsyncEngineArgs
    known = {field.name for field in dataclasses.fields(arguments)}
    for name in settings:
        if name not in known:
            raise ConfigError(f"--engine-args: {name} is not an argument of vLLM's engine")
    # vLLM converts some of these to objects itself, and the others only in its command-line parser.
    objects = {name: value for name, value in settings.items() if isinstance(value, dict)}
    words = [f"{spelled(name)}={json.dumps(value)}" for name, value in objects.items()]
    settings = {**settings, **_parse(words)}
    base: Any = import_module("vllm.v1.metrics.loggers").AggregateStatLoggerBase

    class Recorder(base):  # type: ignore[misc]  # vLLM's is known once it is imported
        is_ours = True

        def __init__(self, **_of_vllm: Any) -> None:
            """Ignores the arguments that vLLM passes."""

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, *, engine_idx: int, **_others: Any
        ) -> None:
            record(engine_idx, scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None: ...

    engine = import_module("vllm.v1.engine.async_llm").AsyncLLM
    try:
        config = arguments(**settings).create_engine_config()
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"vLLM refuses this configuration: {_line(error)}") from error
    try:
        llm = engine.from_vllm_config(config, stat_loggers=[Recorder])
    # VLLM's processes, kernels and packages raise exceptions of any type.
    except Exception as error:
        raise ConfigError(f"vLLM could not start: {_line(error)}") from error
    if llm.profiler is not None:
        llm.profiler = OneThread(llm.profiler)
    return llm, version


async def scale(llm: Any, size: int, drain_timeout: int) -> None:
    """Changes the number of ranks, and keeps the recorder of step statistics."""
    former = llm.logger_manager
    await llm.scale_elastic_ep(size, drain_timeout)
    # With more ranks, vLLM replaces the logger manager by one with its own loggers only.
    if llm.logger_manager is not former:
        ours = [one for one in former.stat_loggers if getattr(one, "is_ours", False)]
        llm.logger_manager.stat_loggers += ours


def media_limits(llm: Any) -> Mapping[str, int]:
    """Returns the maximum number of items of each modality in a prompt; empty for text-only models."""
    processor = llm.renderer.mm_processor
    return {} if processor is None else processor.info.allowed_mm_limits


def max_pixels() -> int | None:
    """Returns the maximum number of pixels of an image; None if the operator has not set one."""
    return import_module("vllm.envs").VLLM_MAX_IMAGE_PIXELS or None


def io_kwargs(model_config: Any) -> dict[str, dict[str, Any]]:
    """Returns the decoding arguments of each modality: the operator's, and those that the model's processor needs."""
    there = import_module("vllm.transformers_utils.processor")
    name = there.get_video_processor_cls_name(model_config)
    video = import_module("vllm.multimodal.video").get_video_loader_backend_for_processor(name)
    given = dict(model_config.multimodal_config.media_io_kwargs or {})
    if video is not None:
        given["video"] = {"video_backend": video, **given.get("video", {})}
    return given


def decode(
    modality: str,
    data: bytes,
    kwargs: Mapping[str, Any],
    on_frames: Callable[[int, int, int], None],
) -> Any:
    """Decodes a media file to the form that vLLM's processors expect. Slow, so it runs on a thread.

    Before a video is decoded, `on_frames` is called with the number of frames that will be used, their width and their
    height.
    """
    there = import_module("vllm.multimodal.media")
    match modality:
        case "image":
            return there.ImageMediaIO(**kwargs).load_bytes(data)
        case "audio":
            reader = there.AudioMediaIO(**kwargs)
            if len(data) > (most := reader.get_max_bytes()):
                raise BadRequest(
                    "audio", f"audio: at most {most} bytes are allowed, got {len(data)}"
                )
            return reader.load_bytes(data)
        case _:
            video = there.VideoMediaIO(there.ImageMediaIO(), **kwargs)
            width, height = _frame_size(data)
            video.video_loader = _reporting(
                video.video_loader, lambda number: on_frames(number, width, height)
            )
            return video.load_bytes(data)


def _frame_size(data: bytes) -> tuple[int, int]:
    """Returns the width and the height in a video's header, independent of the decoder of the frames."""
    file = import_module("vllm.multimodal.video_decoders.opencv").OpenCVVideoBackendMixin
    opencv, opened = import_module("cv2"), file.open_video_capture(data)
    # Closed when the object is collected: releasing a reader of a Python object crashes the process.
    width, height = opencv.CAP_PROP_FRAME_WIDTH, opencv.CAP_PROP_FRAME_HEIGHT
    return int(opened.get(width)), int(opened.get(height))


def _reporting(loader: Any, on_chosen: Callable[[int], None]) -> Any:
    """Returns a video loader that calls `on_chosen` with the number of frames before it decodes them."""
    name = "compute_frames_index_to_sample"
    base = getattr(loader, name).__func__

    def choose(cls: type, *args: Any, **kwargs: Any) -> Any:
        chosen = base(cls, *args, **kwargs)
        on_chosen(len(chosen))
        return chosen

    return type("ReportingLoader", (type(loader),), {name: classmethod(choose)})()


async def process(llm: Any, request: Request, media: Mapping[str, Any]) -> Any:
    """Runs the model's processor on a prompt with media, on a separate thread. Each placeholder in the prompt becomes
    as many tokens as its item has.
    """
    texts = {"prompt": request.prompt, "cache_salt": request.cache_salt}
    given = {name: text for name, text in texts.items() if text is not None}
    prompt = {"prompt_token_ids": request.prompt_token_ids, **given, **media}
    (processed,) = await llm.renderer.render_cmpl_async([prompt])
    return processed


async def item_form(llm: Any, modality: Modality) -> ItemForm:
    """Returns the shared properties of processed items, from a large and a small item. Takes as long as the model's
    processor.
    """
    options = import_module("vllm.config.multimodal")
    small = {
        "image": options.ImageDummyOptions(width=28, height=28),
        "video": options.VideoDummyOptions(width=28, height=28, num_frames=2),
        "audio": options.AudioDummyOptions(length=1600),
    }
    timing = import_module("vllm.multimodal.processing.context").TimingContext(enabled=False)
    processor = llm.renderer.get_mm_processor()
    max_model_len = llm.vllm_config.model_config.max_model_len

    def made(chosen: Mapping[str, Any]) -> Item:
        inputs = processor.get_dummy_inputs(
            seq_len=max_model_len,
            mm_counts={modality: 1},
            mm_options=options.MultiModalDummyOptions(chosen),
        )
        done = processor.apply(inputs, timing_ctx=timing)
        return _to_item(done["mm_kwargs"][modality][0], done["mm_placeholders"][modality][0])

    def both() -> ItemForm:
        try:
            return ItemForm.of(made({}), made({modality: small[modality]}))
        except Exception as error:  # noqa: BLE001 - a model's own code can raise anything
            log.warning("tensors of %s are not checked: %s", modality, _line(error))
            return ItemForm({}, None)

    # On the thread that vLLM has for this: its processors are not thread-safe.
    return await asyncio.get_running_loop().run_in_executor(llm.renderer._mm_executor, both)


def to_multi_modal_input(llm: Any, request: Request, forms: Mapping[Modality, ItemForm]) -> Any:
    """Returns vLLM's input for a prompt whose media are tensors; they bypass the model's processor. Slow."""
    assert request.media is not None
    there = import_module("vllm.multimodal.inputs")
    ids = import_module("torch").tensor(request.prompt_token_ids)
    dtype = llm.vllm_config.model_config.dtype
    items: dict[str, Any] = {}
    places: dict[str, list[Any]] = {}
    for given in request.media.tensors:
        form = forms[given.modality]
        tensors = {
            name: _to_torch(tensor, form.dtype(name), dtype)
            for name, tensor in given.tensors.items()
        }
        fields = {name: _to_field(name, given, tensors) for name in tensors}
        items |= there.MultiModalKwargsItems.from_hf_inputs(tensors, fields)
        places[given.modality] = [
            _to_place(ids, *place, given.embed_token_id) for place in given.placeholders
        ]
        for item, place in zip(items[given.modality], places[given.modality], strict=True):
            form.check(_to_item(item, place))
    return import_module("vllm.inputs.engine").mm_input(
        request.prompt_token_ids,
        there.MultiModalKwargsItems(items),
        {given.modality: to_hashes(given) for given in request.media.tensors},
        places,
        prompt=request.prompt,
        cache_salt=request.cache_salt,
    )


def _to_torch(tensor: Tensor, made_dtype: str | None, model_dtype: Any) -> Any:
    """Converts a tensor to torch: floats to the model's dtype, integers to the dtype that the model's processor
    makes.
    """
    torch = import_module("torch")
    numbers = torch.frombuffer(bytearray(tensor.data), dtype=getattr(torch, tensor.dtype))
    numbers = numbers.reshape(tensor.shape)
    if numbers.is_floating_point():
        return numbers.to(model_dtype)
    made = None if made_dtype is None else getattr(torch, made_dtype)
    return numbers if made is None or made.is_floating_point else numbers.to(made)


def _to_field(name: str, given: MediaTensors, tensors: Mapping[str, Any]) -> Any:
    """Returns vLLM's description of how a tensor is divided into items."""
    kind, sizes = layout(name, given)
    make = getattr(import_module("vllm.multimodal.inputs").MultiModalFieldConfig, kind)
    known = {
        "batched": (),
        "flat_from_sizes": () if sizes is None else (tensors[sizes].flatten().long(),),
        "shared": (len(given.placeholders),),
    }
    return make(given.modality, *known[kind], keep_on_cpu=name in given.on_cpu)


def _to_place(ids: Any, start: int, length: int, token_id: int | None) -> Any:
    mask = None if token_id is None else ids[start : start + length] == token_id
    kind = import_module("vllm.multimodal.inputs").PlaceholderRange
    return kind(start, length, None if mask is None or mask.all() else mask)


def _to_item(item: Mapping[str, Any], place: Any) -> Item:
    tensors = {name: element.data for name, element in item.items()}
    return Item(
        {
            name: (str(numbers.dtype).removeprefix("torch."), tuple(numbers.shape))
            for name, numbers in tensors.items()
            if hasattr(numbers, "shape")  # an array, not a list of arrays
        },
        place.get_num_embeds(),
    )


def to_prompt(request: Request) -> Any:
    """Returns the prompt with its type, so that vLLM calls neither its renderer nor its tokenizer."""
    inputs = import_module("vllm.inputs.engine").tokens_input
    return inputs(request.prompt_token_ids, prompt=request.prompt, cache_salt=request.cache_salt)


def to_sampling_params(arguments: Mapping[str, Any]) -> Any:
    """Returns vLLM's `SamplingParams`. Raises an error for values that exclude each other."""
    there = import_module("vllm.sampling_params")
    values = dict(arguments)
    for name, kind in (
        ("structured_outputs", there.StructuredOutputsParams),
        ("repetition_detection", there.RepetitionDetectionParams),
    ):
        values[name] = None if values[name] is None else kind(**values[name])
    return there.SamplingParams(**values, output_kind=there.RequestOutputKind.DELTA)


def to_pooling_params(arguments: Mapping[str, Any]) -> Any:
    """Returns vLLM's `PoolingParams`."""
    return import_module("vllm.pooling_params").PoolingParams(**arguments)


def to_lora(request: LoRARequest | None) -> Any:
    """Returns vLLM's `LoRARequest`."""
    if request is None:
        return None
    return import_module("vllm.lora.request").LoRARequest(
        lora_name=request.lora_name,
        lora_int_id=request.lora_int_id,
        lora_path=request.lora_path,
        base_model_name=request.base_model_name,
        load_inplace=request.load_inplace,
    )


def to_weight_transfer(request: WeightTransferInitRequest | WeightTransferUpdateRequest) -> Any:
    """Returns vLLM's request for a weight transfer, with the fields of Weft's."""
    there = import_module("vllm.distributed.weight_transfer.base")
    if isinstance(request, WeightTransferInitRequest):
        return there.WeightTransferInitRequest(init_info=dict(request.init_info))
    return there.WeightTransferUpdateRequest(update_info=dict(request.update_info))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:2000] or type(error).__name__
