"""`weft top`: shows the load of a server's engines periodically, from its /metrics."""

import signal
import ssl
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from weft.cli.arguments.settings import wrong_key
from weft.cli.machine.commands import TopOptions
from weft.cli.shown import print_json
from weft.core.errors import ConfigError, Unavailable
from weft.core.observe.metric_series import PREFIX
from weft.core.observe.terminal import say

_CLEAR = "\x1b[H\x1b[J"  # moves the cursor to the first line and clears the screen
_BAR = 30
# A busy server answers late; one that is not there takes no connection.
_TIMEOUT = httpx2.Timeout(30.0, connect=5.0)
_KEY_IS_WRONG = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSample:
    """Values that an engine reported at one moment. Rates are computed from the difference to the previous sample."""

    model: str
    engine: str
    running: int
    waiting: int
    kv_usage: float
    num_blocks: int
    block_size: int
    cache_hit_rate: float
    steps: int
    preemptions: int
    steps_per_s: float
    generated_per_s: float
    prompt_tokens_per_s: float


# Values of series by name, without the prefix; by model and engine.
Scraped = Mapping[tuple[str, str], Mapping[str, float]]


def run(options: TopOptions) -> int:
    """Prints samples until Ctrl-C, or a single sample with `once`; returns the exit status."""
    if not options.interval > 0:
        raise ConfigError(f"--interval must be above 0, not {options.interval:g}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _connect(options) as client:
            _watch(client, options)
    except KeyboardInterrupt:
        if options.once:
            raise
    return 0


def _watch(client: httpx2.Client, options: TopOptions) -> None:
    before, began = _scrape(client, options), time.monotonic()
    while True:
        time.sleep(options.interval)
        after, ended = _scrape(client, options), time.monotonic()
        samples = [
            _sample(key, values, before.get(key, values), ended - began)
            for key, values in sorted(after.items())
        ]
        if options.json:
            print_json(samples, is_line=not options.once)
        else:
            _print(options.url, samples, clears=not options.once)
        if options.once:
            return
        before, began = after, ended


def _connect(target: TopOptions) -> httpx2.Client:
    if not target.url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must be http://HOST:PORT or https://HOST:PORT, not {target.url}")
    try:
        verify = True if target.ca is None else ssl.create_default_context(cafile=target.ca)
    except OSError as error:
        raise ConfigError(f"--ca {target.ca}: {error}") from error
    headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
    return httpx2.Client(headers=headers, verify=verify, timeout=_TIMEOUT, trust_env=False)


def _scrape(client: httpx2.Client, options: TopOptions) -> Scraped:
    url = options.url
    try:
        answer = client.get(f"{url.rstrip('/')}/metrics")
    except httpx2.HTTPError as error:
        raise Unavailable(
            f"no server answers at {url} ({error}); start one with `weft serve MODEL`, or name another with --url"
        ) from error
    if answer.status_code in _KEY_IS_WRONG:
        raise wrong_key(options.api_key)
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    try:
        for family in text_string_to_metric_families(answer.text if answer.is_success else ""):
            for sample in family.samples:
                key = (sample.labels.get("model_name", ""), sample.labels.get("engine", ""))
                name = sample.name.removeprefix(PREFIX)
                if name == "cache_config_info":
                    for label in ("num_gpu_blocks", "block_size"):
                        found[key][label] = float(sample.labels.get(label, 0))
                elif name != sample.name:
                    found[key][name] = sample.value
    except ValueError as error:
        raise Unavailable(f"{url}/metrics does not return metrics ({error})") from error
    engines = {key: values for key, values in found.items() if "num_requests_running" in values}
    if not engines:
        raise Unavailable(f"{url} has no engine's metrics (status {answer.status_code})")
    return engines


def _sample(
    key: tuple[str, str], values: Mapping[str, float], before: Mapping[str, float], passed_s: float
) -> TopSample:
    def total(name: str) -> float:
        return values.get(name, 0.0)

    def rate(name: str) -> float:
        return (total(name) - before.get(name, 0.0)) / passed_s

    looked_up = total("prefix_cache_queries_total")
    return TopSample(
        model=key[0],
        engine=key[1],
        running=int(total("num_requests_running")),
        waiting=int(total("num_requests_waiting")),
        kv_usage=total("kv_cache_usage_perc"),
        num_blocks=int(total("num_gpu_blocks")),
        block_size=int(total("block_size")),
        cache_hit_rate=total("prefix_cache_hits_total") / looked_up if looked_up else 0.0,
        steps=int(total("iteration_tokens_total_count")),
        preemptions=int(total("num_preemptions_total")),
        steps_per_s=rate("iteration_tokens_total_count"),
        generated_per_s=rate("generation_tokens_total"),
        prompt_tokens_per_s=rate("prompt_tokens_total"),
    )


def _print(url: str, samples: Sequence[TopSample], *, clears: bool) -> None:
    if clears and sys.stdout.isatty():
        sys.stdout.write(_CLEAR)
    for sample in samples:
        engine = f", engine {sample.engine}" if len(samples) > 1 else ""
        say(f"{sample.model} at {url}{engine}")
        for name, text in _rows(sample):
            say(f"  {name:<10}{text}")


def _rows(sample: TopSample) -> list[tuple[str, str]]:
    filled = round(_BAR * min(1.0, sample.kv_usage))
    num_tokens = sample.num_blocks * sample.block_size
    bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
    speeds = (
        f"{sample.generated_per_s:,.1f} generated, {sample.prompt_tokens_per_s:,.1f} of prompts"
    )
    return [
        ("requests", f"{sample.running:,} running, {sample.waiting:,} waiting"),
        ("KV", f"{bar} {sample.kv_usage:.0%} of {num_tokens:,} tokens"),
        ("prefixes", f"{sample.cache_hit_rate:.0%} of prompt tokens found in the cache"),
        (
            "steps",
            f"{sample.steps:,}, {sample.steps_per_s:,.1f} a second; {sample.preemptions:,} preemptions",
        ),
        ("tokens", f"{speeds}, a second"),
    ]
