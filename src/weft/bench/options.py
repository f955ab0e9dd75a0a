"""Options of `weft bench`.

Names and defaults are those of `vllm bench`, and vLLM's documentation explains them:
docs.vllm.ai/en/latest/cli/bench/serve.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from weft.bench.prompt_options import PromptOptions
from weft.core.values.declare import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Options of the server, its API, and fields of every request."""

    backend: Annotated[
        Literal["openai", "vllm", "openai-chat", "grpc"],
        Flag(
            "API to call: openai or vllm (text completions), openai-chat (chat completions) or grpc (the "
            "VllmEngine protocol).",
            "Target",
        ),
    ] = "openai"
    base_url: Annotated[
        str | None,
        Flag(
            "Server URL, http(s)://HOST:PORT or grpc://HOST:PORT; replaces --host and --port.",
            "Target",
        ),
    ] = None
    host: Annotated[str, Flag("Host of the server.", "Target")] = "127.0.0.1"
    port: Annotated[
        int | None, Flag("Port of the server. Default: 8000, or 50051 for grpc.", "Target")
    ] = None
    endpoint: Annotated[
        str | None,
        Flag("Path of the API. Default: /v1/completions or /v1/chat/completions.", "Target"),
    ] = None
    model: Annotated[
        str | None,
        Flag("Model to request. Default: the first model that the server lists.", "Target"),
    ] = None
    served_model_name: Annotated[
        str | None, Flag("Model name to send in requests. Default: --model.", "Target")
    ] = None
    tokenizer: Annotated[
        str | None,
        Flag(
            "Directory or Hub id of the tokenizer. It makes prompts of exact lengths over HTTP, and counts the "
            "tokens of answers for datasets that give no lengths.",
            "Target",
        ),
    ] = None
    api_key: Annotated[
        str | None, Flag("API key of the server. Default: OPENAI_API_KEY.", "Target")
    ] = None
    header: Annotated[
        tuple[str, ...],
        Flag(
            "HTTP headers to send, as KEY=VALUE; several may follow.", "Target", takes_several=True
        ),
    ] = ()
    insecure: Annotated[
        bool, Flag("Skip verification of the server's TLS certificate.", "Target")
    ] = False
    grpc_tls_ca: Annotated[
        Path | None, Flag("CA certificate (PEM) for gRPC; enables TLS.", "Target")
    ] = None
    ready_check_timeout_sec: Annotated[
        float, Flag("Seconds to wait until the server is ready; 0 means no wait.", "Target")
    ] = 0.0
    ignore_eos: Annotated[
        bool,
        Flag(
            "Ignore the end-of-sequence token, so that every answer has its full length. Always on with "
            "random prompts.",
            "Target",
        ),
    ] = False
    temperature: Annotated[
        float | None, Flag("Sampling temperature. Default: the server's.", "Target")
    ] = None
    top_p: Annotated[float | None, Flag("Top-p of sampling. Default: the server's.", "Target")] = (
        None
    )
    top_k: Annotated[int | None, Flag("Top-k of sampling. Default: the server's.", "Target")] = None
    min_p: Annotated[float | None, Flag("Min-p of sampling. Default: the server's.", "Target")] = (
        None
    )
    frequency_penalty: Annotated[
        float | None, Flag("Frequency penalty. Default: the server's.", "Target")
    ] = None
    presence_penalty: Annotated[
        float | None, Flag("Presence penalty. Default: the server's.", "Target")
    ] = None
    repetition_penalty: Annotated[
        float | None, Flag("Repetition penalty. Default: the server's.", "Target")
    ] = None
    extra_body: Annotated[
        str | dict[str, Any] | None,
        Flag("Extra fields for every HTTP body, as a JSON object.", "Target", is_json=True),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """Options of the send times, and limits of the run."""

    request_rate: Annotated[
        float, Flag("Requests per second; inf sends all at once.", "Traffic")
    ] = float("inf")
    burstiness: Annotated[
        float,
        Flag(
            "Burstiness: shape of the gamma distribution of the intervals between requests. 1 is a Poisson "
            "process, less than 1 is more bursty, more than 1 is more even, inf is constant.",
            "Traffic",
        ),
    ] = 1.0
    max_concurrency: Annotated[
        int | None,
        Flag("Maximum number of concurrent requests; further ones wait in the client.", "Traffic"),
    ] = None
    ramp_up_strategy: Annotated[
        Literal["linear", "exponential"] | None,
        Flag("How the request rate grows: linear or exponential.", "Traffic"),
    ] = None
    ramp_up_start_rps: Annotated[
        float | None, Flag("Request rate at the start of the ramp.", "Traffic")
    ] = None
    ramp_up_end_rps: Annotated[
        float | None, Flag("Request rate at the end of the ramp.", "Traffic")
    ] = None
    num_warmups: Annotated[int, Flag("Warm-up requests, which are not measured.", "Traffic")] = 0
    time_limit: Annotated[
        float, Flag("Seconds after which open requests are aborted.", "Traffic")
    ] = 3600.0
    disable_tqdm: Annotated[bool, Flag("Hide the progress bar.", "Traffic")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options of the reported metrics, and of the files to write."""

    percentile_metrics: Annotated[
        str,
        Flag(
            "Metrics to report percentiles of: ttft, tpot, itl, e2el, client_queue_time, "
            "e2el_including_client_queue. The last two need --max-concurrency.",
            "Result",
        ),
    ] = "ttft,tpot,itl,e2el"
    metric_percentiles: Annotated[
        str, Flag("Percentiles to report, separated by commas.", "Result")
    ] = "99"
    goodput: Annotated[
        tuple[str, ...],
        Flag(
            "Service-level objectives as NAME:MILLISECONDS, for ttft, tpot or e2el. Goodput counts the requests "
            "per second that meet all of them.",
            "Result",
            takes_several=True,
        ),
    ] = ()
    table_words: Annotated[
        Literal["weft", "vllm"],
        Flag(
            "Wording of the printed table: Weft's, or that of vllm bench serve for scripts that parse it.",
            "Result",
        ),
    ] = "weft"
    save_result: Annotated[bool, Flag("Save the result as JSON.", "Result")] = False
    append_result: Annotated[bool, Flag("Append the result as one line to the file.", "Result")] = (
        False
    )
    save_detailed: Annotated[
        bool, Flag("Include the times and texts of every request in the result.", "Result")
    ] = False
    result_dir: Annotated[Path | None, Flag("Directory of the result file.", "Result")] = None
    result_filename: Annotated[
        str | None,
        Flag("Name of the result file. Default: made from label, rate, model and date.", "Result"),
    ] = None
    html: Annotated[Path | None, Flag("Write an HTML page with plots to this file.", "Result")] = (
        None
    )
    label: Annotated[str | None, Flag("Label of this run. Default: the backend.", "Result")] = None
    metadata: Annotated[
        tuple[str, ...],
        Flag(
            "Metadata to store in the result, as KEY=VALUE; several may follow.",
            "Result",
            takes_several=True,
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOptions:
    """Target of `throughput` and `latency`: an engine in this process, or a server."""

    backend: Annotated[
        Literal["engine", "openai", "vllm", "openai-chat", "grpc"],
        Flag("Target: an engine in this process, with the settings below, or a server.", "Target"),
    ] = "engine"
    model: Annotated[
        str | None,
        Flag(
            "Model that the engine loads (default: embedded:tiny), or its name on the server.",
            "Target",
        ),
    ] = None
    base_url: Annotated[
        str | None, Flag("Server URL, http(s)://HOST:PORT or grpc://HOST:PORT.", "Target")
    ] = None
    api_key: Annotated[
        str | None, Flag("API key of the server. Default: OPENAI_API_KEY.", "Target")
    ] = None
    temperature: Annotated[
        float | None, Flag("Sampling temperature. Default: the model's.", "Target")
    ] = None
    output_json: Annotated[
        Path | None, Flag("Write the result as JSON to this file.", "Result")
    ] = None
    time_limit: Annotated[
        float, Flag("Seconds after which open requests are aborted.", "Traffic")
    ] = 3600.0
    disable_tqdm: Annotated[bool, Flag("Hide the progress bar.", "Traffic")] = False

    def target(self, tokenizer: str | None) -> TargetOptions:
        """Returns the options of the server. Of the engine's options, a server needs only the tokenizer."""
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
    """Options of the batch that is measured repeatedly."""

    input_len: Annotated[int, Flag("Prompt tokens per request.", "Prompts")] = 32
    output_len: Annotated[int, Flag("Output tokens per request.", "Prompts")] = 128
    batch_size: Annotated[int, Flag("Batch size: requests that are sent together.", "Prompts")] = 8
    num_iters_warmup: Annotated[
        int, Flag("Warm-up batches, which are not measured.", "Traffic")
    ] = 10
    num_iters: Annotated[int, Flag("Batches to measure.", "Traffic")] = 30
    seed: Annotated[int, Flag("Random seed for prompts.", "Prompts")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Commands and settings of a sweep, and its output directory."""

    bench_cmd: Annotated[
        str, Flag('Benchmark command, such as "weft bench serve ...".', "Target")
    ] = "weft bench serve"
    serve_cmd: Annotated[
        str | None,
        Flag(
            'Server command, such as "weft serve ..."; leave it out if the server runs already.',
            "Target",
        ),
    ] = None
    bench_params: Annotated[
        Path | None,
        Flag(
            "JSON file with a list of flag sets for --bench-cmd, or with an object of named flag sets.",
            "Traffic",
        ),
    ] = None
    serve_params: Annotated[
        Path | None,
        Flag(
            "JSON file with flag sets for --serve-cmd. Every combination with --bench-params is measured.",
            "Traffic",
        ),
    ] = None
    num_runs: Annotated[int, Flag("Number of runs per combination.", "Traffic")] = 3
    server_ready_timeout: Annotated[
        float, Flag("Seconds to wait for the server to start.", "Target")
    ] = 300.0
    output_dir: Annotated[Path, Flag("Directory for results.", "Result")] = Path("results")
    experiment_name: Annotated[
        str | None,
        Flag(
            "Name of the experiment's directory in --output-dir. Default: date and time.", "Result"
        ),
    ] = None
    resume: Annotated[bool, Flag("Skip runs that already have a result.", "Result")] = False
    show_stdout: Annotated[bool, Flag("Show the output of the commands.", "Result")] = False
    dry_run: Annotated[bool, Flag("Print the commands without running them.", "Result")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of a comparison's confidence intervals."""

    confidence: Annotated[
        float, Flag("Confidence level of the intervals, such as 0.95.", "Result")
    ] = 0.95
    resamples: Annotated[int, Flag("Number of bootstrap samples.", "Result")] = 2000
    seed: Annotated[int, Flag("Random seed of the bootstrap.", "Result")] = 0
    output_json: Annotated[
        Path | None, Flag("Write the comparison as JSON to this file.", "Result")
    ] = None


@dataclass(frozen=True, slots=True)
class Load:
    """All options of one load."""

    target: TargetOptions
    prompts: PromptOptions
    traffic: TrafficOptions
    report: ReportOptions
