"""What the commands of `weft bench` are started with. Names and defaults are those of `vllm bench`.

What a name of theirs means is in vLLM's documentation, docs.vllm.ai/en/latest/cli/bench/serve.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from weft.core.declare import Flag

DATASETS = Literal["random", "sharegpt", "prefix_repetition", "custom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Which server, over which API, and what every request carries."""

    backend: Annotated[
        Literal["openai", "vllm", "openai-chat", "grpc"],
        Flag(
            "openai (vllm is the same): text completions; openai-chat: chat completions; "
            "grpc: the VllmEngine protocol.",
            "Target",
        ),
    ] = "openai"
    base_url: Annotated[
        str | None, Flag("http(s)://HOST:PORT or grpc://HOST:PORT; instead of the two.", "Target")
    ] = None
    host: Annotated[str, Flag("Address of the server.", "Target")] = "127.0.0.1"
    port: Annotated[int | None, Flag("Its port; 8000 if unset, and 50051 for grpc.", "Target")] = (
        None
    )
    endpoint: Annotated[
        str | None,
        Flag("Path of the API; /v1/completions or /v1/chat/completions if unset.", "Target"),
    ] = None
    model: Annotated[
        str | None, Flag("The model to ask for; the server's first if unset.", "Target")
    ] = None
    served_model_name: Annotated[
        str | None, Flag("Its name in requests, where it is not --model.", "Target")
    ] = None
    tokenizer: Annotated[
        str | None,
        Flag(
            "Directory or Hub id of the model's tokenizer, for prompts of exact lengths over HTTP, and "
            "for lengths of answers that a dataset does not give.",
            "Target",
        ),
    ] = None
    api_key: Annotated[str | None, Flag("The server's key; OPENAI_API_KEY if unset.", "Target")] = (
        None
    )
    header: Annotated[
        tuple[str, ...],
        Flag("KEY=VALUE to send as a header; several may follow.", "Target", takes_several=True),
    ] = ()
    insecure: Annotated[bool, Flag("Trust any certificate of the server.", "Target")] = False
    grpc_tls_ca: Annotated[
        Path | None, Flag("Certificate (PEM) to trust over gRPC; turns TLS on.", "Target")
    ] = None
    ready_check_timeout_sec: Annotated[
        float, Flag("Seconds to wait until the server answers; 0: it must at once.", "Target")
    ] = 0.0
    ignore_eos: Annotated[
        bool, Flag("Answers go on to their length; always with random prompts.", "Target")
    ] = False
    temperature: Annotated[float | None, Flag("The server's own if unset.", "Target")] = None
    top_p: Annotated[float | None, Flag("The server's own if unset.", "Target")] = None
    top_k: Annotated[int | None, Flag("The server's own if unset.", "Target")] = None
    min_p: Annotated[float | None, Flag("The server's own if unset.", "Target")] = None
    frequency_penalty: Annotated[float | None, Flag("The server's own if unset.", "Target")] = None
    presence_penalty: Annotated[float | None, Flag("The server's own if unset.", "Target")] = None
    repetition_penalty: Annotated[float | None, Flag("The server's own if unset.", "Target")] = None
    extra_body: Annotated[
        str | dict[str, Any] | None,
        Flag("More fields of every HTTP body, as a JSON object.", "Target", is_json=True),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What is sent."""

    dataset_name: Annotated[
        DATASETS,
        Flag(
            "Random tokens; conversations in ShareGPT's format; few prefixes with many suffixes; "
            'or lines of JSON with a "prompt".',
            "Prompts",
        ),
    ] = "random"
    dataset_path: Annotated[Path | None, Flag("File of sharegpt or custom.", "Prompts")] = None
    num_prompts: Annotated[int, Flag("Requests to send.", "Prompts")] = 1000
    seed: Annotated[int, Flag("Prompts, lengths and arrivals follow from it.", "Prompts")] = 0
    input_len: Annotated[
        int | None, Flag("Prompt tokens: --random-input-len by another name.", "Prompts")
    ] = None
    output_len: Annotated[
        int | None, Flag("Tokens of an answer, whatever the dataset.", "Prompts")
    ] = None
    random_input_len: Annotated[int, Flag("Prompt tokens, of random.", "Prompts")] = 1024
    random_output_len: Annotated[int, Flag("Tokens of an answer, of random.", "Prompts")] = 128
    random_range_ratio: Annotated[
        float, Flag("Lengths of random vary by this share, both ways; below 1.", "Prompts")
    ] = 0.0
    random_prefix_len: Annotated[
        int, Flag("Tokens before them that all prompts of random share.", "Prompts")
    ] = 0
    prefix_repetition_prefix_len: Annotated[int, Flag("Tokens of a prefix.", "Prompts")] = 256
    prefix_repetition_suffix_len: Annotated[int, Flag("Tokens after it.", "Prompts")] = 256
    prefix_repetition_num_prefixes: Annotated[int, Flag("How many prefixes.", "Prompts")] = 10
    prefix_repetition_output_len: Annotated[
        int, Flag("Tokens of an answer, of prefix_repetition.", "Prompts")
    ] = 128
    sharegpt_output_len: Annotated[
        int | None, Flag("Tokens of an answer; the dataset's if unset.", "Prompts")
    ] = None
    custom_output_len: Annotated[
        int, Flag("Tokens of an answer; -1: those in output_tokens of the line.", "Prompts")
    ] = 256
    disable_shuffle: Annotated[bool, Flag("Take the file's order.", "Prompts")] = False
    no_oversample: Annotated[
        bool, Flag("Send fewer requests if the file has fewer prompts.", "Prompts")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """When it is sent, and for how long."""

    request_rate: Annotated[float, Flag("Requests a second; inf: all at once.", "Traffic")] = float(
        "inf"
    )
    burstiness: Annotated[
        float,
        Flag(
            "Shape of the gamma distribution that intervals are drawn from; 1: a Poisson process, below: "
            "bursts, above: more even, inf: all the same.",
            "Traffic",
        ),
    ] = 1.0
    max_concurrency: Annotated[
        int | None, Flag("Most requests open at a time; others wait here.", "Traffic")
    ] = None
    ramp_up_strategy: Annotated[
        Literal["linear", "exponential"] | None,
        Flag("How the rate grows from request to request.", "Traffic"),
    ] = None
    ramp_up_start_rps: Annotated[float | None, Flag("Rate of the first request.", "Traffic")] = None
    ramp_up_end_rps: Annotated[float | None, Flag("Rate of the last.", "Traffic")] = None
    num_warmups: Annotated[int, Flag("Requests before, which do not count.", "Traffic")] = 0
    time_limit: Annotated[
        float, Flag("Seconds after which open requests are given up.", "Traffic")
    ] = 3600.0
    disable_tqdm: Annotated[bool, Flag("Show no progress bar.", "Traffic")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What is made of it."""

    percentile_metrics: Annotated[
        str,
        Flag(
            "Which of ttft, tpot, itl, e2el, client_queue_time and e2el_including_client_queue to "
            "show; the last two need --max-concurrency.",
            "Result",
        ),
    ] = "ttft,tpot,itl,e2el"
    metric_percentiles: Annotated[str, Flag("Percentiles of each.", "Result")] = "99"
    goodput: Annotated[
        tuple[str, ...],
        Flag(
            "Objectives, NAME:MILLISECONDS of ttft, tpot or e2el: requests a second that keep to all.",
            "Result",
            takes_several=True,
        ),
    ] = ()
    save_result: Annotated[bool, Flag("Write the figures as JSON.", "Result")] = False
    append_result: Annotated[bool, Flag("Write them as one more line of the file.", "Result")] = (
        False
    )
    save_detailed: Annotated[bool, Flag("With the times and texts of every request.", "Result")] = (
        False
    )
    result_dir: Annotated[Path | None, Flag("Directory of that file.", "Result")] = None
    result_filename: Annotated[
        str | None, Flag("Its name; label, rate, model and date if unset.", "Result")
    ] = None
    html: Annotated[Path | None, Flag("Write a page with plots to this file.", "Result")] = None
    label: Annotated[str | None, Flag("Name of this run; the backend if unset.", "Result")] = None
    metadata: Annotated[
        tuple[str, ...],
        Flag("KEY=VALUE to keep in the JSON; several may follow.", "Result", takes_several=True),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOptions:
    """Where `throughput` and `latency` run: in an engine of this process, or on a server."""

    backend: Annotated[
        Literal["engine", "openai", "vllm", "openai-chat", "grpc"],
        Flag("An engine in this process, with the settings below, or a server.", "Target"),
    ] = "engine"
    model: Annotated[
        str | None,
        Flag("What the engine loads, embedded:tiny if unset; or the server's name.", "Target"),
    ] = None
    base_url: Annotated[
        str | None, Flag("http(s)://HOST:PORT or grpc://HOST:PORT of the server.", "Target")
    ] = None
    api_key: Annotated[str | None, Flag("The server's key; OPENAI_API_KEY if unset.", "Target")] = (
        None
    )
    temperature: Annotated[float | None, Flag("The model's own if unset.", "Target")] = None
    output_json: Annotated[Path | None, Flag("Write the figures to this file.", "Result")] = None
    time_limit: Annotated[
        float, Flag("Seconds after which open requests are given up.", "Traffic")
    ] = 3600.0
    disable_tqdm: Annotated[bool, Flag("Show no progress bar.", "Traffic")] = False

    def target(self, tokenizer: str | None) -> TargetOptions:
        """The server's part; of an engine's own settings a server's needs the tokenizer."""
        assert self.backend != "engine"
        return TargetOptions(
            backend=self.backend,
            model=self.model,
            base_url=self.base_url,
            api_key=self.api_key,
            tokenizer=tokenizer,
            temperature=self.temperature,
            ignore_eos=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """One batch, again and again."""

    input_len: Annotated[int, Flag("Prompt tokens.", "Prompts")] = 32
    output_len: Annotated[int, Flag("Tokens of an answer.", "Prompts")] = 128
    batch_size: Annotated[int, Flag("Requests that are sent together.", "Prompts")] = 8
    num_iters_warmup: Annotated[int, Flag("Batches before, which do not count.", "Traffic")] = 10
    num_iters: Annotated[int, Flag("Batches that do.", "Traffic")] = 30
    seed: Annotated[int, Flag("Prompts follow from it.", "Prompts")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Which commands, with which settings, and where to."""

    bench_cmd: Annotated[
        str, Flag('The command that measures: "weft bench serve ...".', "Target")
    ] = "weft bench serve"
    serve_cmd: Annotated[
        str | None,
        Flag('The command of the server, "weft serve ..."; none: it runs already.', "Target"),
    ] = None
    bench_params: Annotated[
        Path | None,
        Flag("JSON: a list of tables of flags of --bench-cmd, or a table of such.", "Traffic"),
    ] = None
    serve_params: Annotated[
        Path | None,
        Flag("The same for --serve-cmd; every one is measured with every one.", "Traffic"),
    ] = None
    num_runs: Annotated[int, Flag("Runs of each combination.", "Traffic")] = 3
    server_ready_timeout: Annotated[
        float, Flag("Seconds that the server may take to start.", "Target")
    ] = 300.0
    output_dir: Annotated[Path, Flag("Directory of the results.", "Result")] = Path("results")
    experiment_name: Annotated[
        str | None, Flag("Directory in it; date and time if unset.", "Result")
    ] = None
    resume: Annotated[bool, Flag("Leave out runs whose result is there.", "Result")] = False
    show_stdout: Annotated[bool, Flag("Show what the commands print.", "Result")] = False
    dry_run: Annotated[bool, Flag("Only show the commands.", "Result")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How sure the intervals are."""

    confidence: Annotated[float, Flag("Share of intervals that hold the truth.", "Result")] = 0.95
    resamples: Annotated[int, Flag("Draws of the bootstrap.", "Result")] = 2000
    seed: Annotated[int, Flag("The draws follow from it.", "Result")] = 0
    output_json: Annotated[Path | None, Flag("Write the comparison to this file.", "Result")] = None


@dataclass(frozen=True, slots=True)
class Load:
    """All that is said of one load."""

    target: TargetOptions
    prompts: PromptOptions
    traffic: TrafficOptions
    report: ReportOptions
