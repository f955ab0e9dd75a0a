"""Options of one engine as the user gives them; `weft.core.config.engine` has the settings resolved from them."""

from typing import Annotated, Any, Literal

import msgspec

from weft.core.config.defaults import (
    DEFAULT_MAX_IMAGES,
    DEFAULT_MEMORY_SHARE,
    DEFAULT_STREAM_INTERVAL_MS,
    DEFAULT_TARGET_ITL_MS,
    DEFAULTS,
    MOST_ROWS,
)
from weft.core.config.pooler_options import PoolerOptions
from weft.core.values.declare import Flag


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one engine as the user gave them; None means "choose for me"."""

    model: str = "embedded:tiny"
    revision: Annotated[str | None, Flag("Branch, tag or commit of a Hub model.", "Model")] = None
    served_model_name: Annotated[
        list[str] | None, Flag("Model name in the APIs; repeat for aliases.", "Model")
    ] = None
    tokenizer: Annotated[
        str | None,
        Flag(
            "Directory or Hub id of the tokenizer and chat template. Default: the model's.", "Model"
        ),
    ] = None
    hf_overrides: Annotated[
        str | dict[str, Any] | None,
        Flag("Values that override config.json, as a JSON object.", "Model", is_json=True),
    ] = None
    mmproj: Annotated[
        str | None,
        Flag(
            "Projector file (the vision tower) of a model in a GGUF file: a path, OWNER/NAME:FILE on the Hub, or none "
            "for text alone. Default: the file beside the model whose name has mmproj, if it fits the model.",
            "Model",
        ),
    ] = None
    generation_config: Annotated[
        str,
        Flag(
            "Source of sampling defaults: auto (the model's generation_config.json), vllm (no defaults from the "
            "model), or a directory with a generation_config.json.",
            "Model",
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Values that override generation_config.json, as a JSON object such as {"temperature": 0.5}.',
            "Model",
            is_json=True,
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Flag("Data type of the weights; auto keeps the type in the checkpoint.", "Model"),
    ] = "auto"
    runner: Annotated[
        Literal["auto", "generate", "pooling"],
        Flag(
            "Task of the model: generate text, or pool hidden states (embed, classify, score). auto decides by "
            "the model's files.",
            "Model",
        ),
    ] = "auto"
    pooler_config: Annotated[
        str | dict[str, Any] | PoolerOptions | None,
        Flag(
            "Pooling settings as JSON: pooling_type, normalize, enable_chunked_processing, max_embed_len.",
            "Model",
            is_json=True,
        ),
    ] = None
    quantization: Annotated[
        Literal["int8", "int4", "none"] | None,
        Flag(
            "Quantize linear layers while loading: int8 (half the memory of bf16) or int4 (a third); on CPUs "
            "with int8 inputs. none: dequantize a quantized checkpoint. Default: keep the format of the checkpoint if "
            "a kernel computes it, else dequantize.",
            "Model",
        ),
    ] = None
    weight_format: Annotated[
        Literal["auto", "safetensors", "gguf", "awq", "gptq", "compressed-tensors", "fp8"],
        Flag(
            "Required format of the model's files; a model in another format is refused. auto accepts every "
            "format; awq, gptq, compressed-tensors and fp8 are quantized safetensors.",
            "Model",
        ),
    ] = "auto"
    packed_cache_bytes: Annotated[
        int | None,
        Flag(
            "Disk space for the cache of packed weights (XDG_CACHE_HOME/weft/packed), which makes the next start "
            f"faster; 0 disables it. Default: {DEFAULTS['packed_cache_bytes'] >> 30}GiB.",
            "Model",
            is_size=True,
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "int8"],
        Flag(
            "Data type of the KV cache: int8 holds twice the tokens in the same memory; auto is the type of the "
            "computation.",
            "Model",
        ),
    ] = "auto"
    compute: Annotated[
        str,
        Flag(
            "Compute backend: gpu (an NVIDIA card), native (C++), reference (numpy, slow) or auto.",
            "Model",
        ),
    ] = "auto"
    num_threads: Annotated[
        int | None, Flag("Number of compute threads. Default: the CPUs of this process.", "Model")
    ] = None
    data_parallel_size: Annotated[
        int,
        Flag(
            "Number of engines (data parallelism). Each is a process with its share of CPUs, --num-threads and "
            "free memory. Limits and sizes apply per engine.",
            "Scheduling",
        ),
    ] = 1
    engine_restarts: Annotated[
        int | None,
        Flag(
            "Maximum number of consecutive restarts of an engine process that ended; its requests continue. An engine "
            "that runs for 60 s resets the count. Default: no limit for several engines; 0 for a single engine, whose "
            "end ends the server.",
            "Scheduling",
        ),
    ] = None
    enable_elastic_ep: Annotated[
        bool,
        Flag("Let POST /scale_elastic_ep change the number of engines at run time.", "Scheduling"),
    ] = False
    max_model_len: Annotated[
        int | None,
        Flag(
            "Maximum context length: prompt and answer together, in tokens. Default: the model's.",
            "Model",
            is_size=True,
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Flag(
            f"Maximum number of running sequences. Default: {DEFAULTS['max_num_seqs']}.",
            "Scheduling",
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | Literal["auto"] | None,
        Flag(
            "Maximum number of tokens computed in one step, or auto: up to "
            f"{MOST_ROWS:,} by memory, with steps sized by --target-itl-ms. "
            f"Default: {DEFAULTS['max_num_batched_tokens']}.",
            "Scheduling",
            is_size=True,
        ),
    ] = None
    target_itl_ms: Annotated[
        float | None,
        Flag(
            "Target inter-token latency in ms: prefill chunks are sized for it. 0 means no target. Default: "
            f"{DEFAULT_TARGET_ITL_MS:g} with --max-num-batched-tokens auto, else 0.",
            "Scheduling",
        ),
    ] = None
    block_size: Annotated[
        int | None, Flag(f"Tokens per KV block. Default: {DEFAULTS['block_size']}.", "Memory")
    ] = None
    mamba_block_size: Annotated[
        int | None,
        Flag(
            f"Tokens between cached states of recurrent layers. Default: {DEFAULTS['mamba_block_size']}.",
            "Memory",
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None, Flag("Size of the KV pool in blocks.", "Memory")
    ] = None
    kv_cache_bytes: Annotated[
        int | None,
        Flag(
            "Memory for the KV pool, such as 4GiB. Default: by free memory.",
            "Memory",
            is_size=True,
        ),
    ] = None
    memory_share: Annotated[
        float | None,
        Flag(
            "Share of free memory for weights and KV pool together. "
            f"Default: {DEFAULT_MEMORY_SHARE:g}, with a pool of at most 4 GiB; on a GPU 0.92 of the card's.",
            "Memory",
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool, Flag("Reuse cached KV blocks of prompts that share a prefix.", "Memory")
    ] = True
    kv_offloading_size: Annotated[
        float | None,
        Flag(
            "Size in GiB, per engine, of the second tier of the prefix cache, which keeps blocks that leave the "
            "KV pool: in memory, or in files with --kv-offloading-path.",
            "Memory",
        ),
    ] = None
    kv_offloading_path: Annotated[
        str | None,
        Flag(
            "Directory for the files of the second tier; they are reused after a restart.",
            "Memory",
        ),
    ] = None
    kv_transfer_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Transfer of KV blocks between engines (disaggregated prefill), as JSON such as {"kv_connector": '
            '"TcpConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"secret_file": "FILE"}}; '
            "ShmConnector works on one machine, without a secret.",
            "Memory",
            is_json=True,
        ),
    ] = None
    kv_events_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Publish prefix-cache events over ZeroMQ, as JSON such as {"enable_kv_cache_events": true, '
            '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv-events"}. Events contain '
            "prompt tokens. Default endpoint: port 5557 on loopback.",
            "Memory",
            is_json=True,
        ),
    ] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        Flag(
            "Scheduling policy: fcfs (first come, first served) or priority (by request priority).",
            "Scheduling",
        ),
    ] = "fcfs"
    max_num_queued_reqs: Annotated[
        int | None,
        Flag(
            "Maximum number of waiting requests; further ones are refused. "
            f"Default: {DEFAULTS['max_num_queued_reqs']}.",
            "Scheduling",
        ),
    ] = None
    max_num_queued_tokens: Annotated[
        int | None,
        Flag(
            f"Maximum number of waiting prompt tokens; further requests are refused. "
            f"Default: {DEFAULTS['max_num_queued_tokens']}.",
            "Scheduling",
            is_size=True,
        ),
    ] = None
    max_logprobs: Annotated[
        int,
        Flag(
            "Maximum number of logprobs per token that a request may ask for; -1 means no limit.",
            "Model",
        ),
    ] = 20
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"],
        Flag(
            "Stage at which logprobs are taken: raw (the model's logits) or processed (after penalties, "
            "temperature and top-k/top-p).",
            "Model",
        ),
    ] = "raw_logprobs"
    structured_outputs_in_reasoning: Annotated[
        bool,
        Flag(
            "Apply structured-output constraints to the reasoning too, not only to the answer.",
            "Model",
        ),
    ] = False
    speculative_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Speculative decoding, as JSON. Prompt lookup (n-gram): {"method": "ngram", "num_speculative_tokens": '
            '4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}. Draft model with the same tokenizer: {"model": '
            '"…", "num_speculative_tokens": 4}. The model\'s own head for multi-token prediction: {"method": '
            '"mtp", "num_speculative_tokens": 1}. Answers do not change.',
            "Scheduling",
            is_json=True,
        ),
    ] = None
    profiler_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Enable /start_profile and set its trace directory, as JSON such as {"torch_profiler_dir": '
            '"/tmp/traces", "max_iterations": 1000}.',
            "Scheduling",
            is_json=True,
        ),
    ] = None
    weight_transfer_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Enable weight updates at run time, as JSON: {"backend": "shared_memory"} or {"backend": '
            '"safetensors", "directory": "/tmp/weights"}.',
            "Model",
            is_json=True,
        ),
    ] = None
    stream_interval_ms: Annotated[
        float | None,
        Flag(
            "Minimum time in ms between two events of a stream: tokens generated in between are sent together. "
            f"0 sends every token by itself. Default: {DEFAULT_STREAM_INTERVAL_MS:g}.",
            "API",
        ),
    ] = None
    enable_lora: Annotated[
        bool, Flag("Serve LoRA adapters, and reserve memory for LoRA adapters.", "Model")
    ] = False
    max_loras: Annotated[
        int | None,
        Flag(
            "Maximum number of LoRA adapters loaded at once; the least recently used one is unloaded. "
            f"Default: {DEFAULTS['max_loras']}.",
            "Model",
        ),
    ] = None
    max_lora_rank: Annotated[
        int | None,
        Flag(f"Maximum rank of a LoRA adapter. Default: {DEFAULTS['max_lora_rank']}.", "Model"),
    ] = None
    enable_prompt_embeds: Annotated[
        bool, Flag("Accept embeddings as prompts (prompt_embeds).", "Model")
    ] = False
    limit_mm_per_prompt: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Maximum number of pictures, or of sounds, per prompt, as JSON such as {"image": 4} or {"audio": 1}. '
            f"Default: {DEFAULT_MAX_IMAGES}.",
            "Model",
            is_json=True,
        ),
    ] = None
    allowed_media_domains: Annotated[
        list[str] | None,
        Flag(
            "Hosts that pictures of prompts are fetched from; repeat for more. Default: no hosts; pictures come in "
            "data: URLs.",
            "Model",
            takes_several=True,
        ),
    ] = None
    allowed_local_media_path: Annotated[
        str | None,
        Flag("Directory of pictures that prompts may name as file: URLs. Default: none.", "Model"),
    ] = None
    mm_processor_cache_gb: Annotated[
        float,
        Flag(
            "GiB of memory for prepared pictures in each server process, and as many in each engine for encoder "
            "outputs of pictures and recordings; 0 keeps none.",
            "Model",
        ),
    ] = 0.5
