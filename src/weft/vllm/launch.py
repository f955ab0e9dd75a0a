"""Starts vLLM's engine with the converted settings and creates its client. The engine is loaded on a thread and used on
the event loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.config.engine import EngineConfig
from weft.media.limits import MediaSources
from weft.text.tokenizer import Tokenizer
from weft.vllm.client import VllmClient
from weft.vllm.convert.config import to_engine_config, to_eos_ids, with_media, with_pooler
from weft.vllm.convert.errors import translated
from weft.vllm.convert.settings import MAX_ELASTIC_RANKS
from weft.vllm.engine import media_limits, start
from weft.vllm.kv_events import KvEventReader
from weft.vllm.load import LoadMeter
from weft.vllm.speech_model import SpeechModel


@dataclass(frozen=True, slots=True)
class Launched:
    """An engine of vLLM whose weights are loaded. `connect` is called once."""

    llm: Any
    config: EngineConfig
    meters: dict[int, LoadMeter]
    events: KvEventReader | None
    version: str

    async def connect(self, tokenizer: Tokenizer) -> VllmClient:
        """Creates the client of the engine; called in a running event loop."""
        with translated():
            tasks = await self.llm.get_supported_tasks()
        config = with_pooler(self.config, self.llm.model_config, tasks)
        if "transcription" in tasks:
            speech = SpeechModel(self.llm).describe(tasks, tokenizer.token_to_id)
            facts = msgspec.structs.replace(config.model_config, speech=speech)
            config = msgspec.structs.replace(config, model_config=facts)
        return VllmClient(self.llm, config, tokenizer, meters=self.meters, events=self.events)


def launch(settings: Mapping[str, Any], tokenizer: Tokenizer) -> Launched:
    """Loads the weights, which takes minutes; runs on a thread. Raises `ConfigError` with vLLM's reason."""
    # Checked before vLLM starts, which takes minutes.
    MediaSources.of(settings.get("allowed_media_domains"), settings.get("allowed_local_media_path"))
    num_ranks = settings.get("data_parallel_size", 1)
    most = max(num_ranks, MAX_ELASTIC_RANKS) if settings.get("enable_elastic_ep") else num_ranks
    events = KvEventReader(most) if settings.get("enable_prefix_caching", True) else None
    meters = {rank: LoadMeter(rank) for rank in range(num_ranks)}

    def record(rank: int, scheduler: Any, iteration: Any) -> None:
        # If other ranks run on other machines, the rank here keeps its number among all.
        meters.setdefault(rank, LoadMeter(rank)).record(scheduler, iteration)

    feeds = {} if events is None else {"kv_events_config": events.settings}
    try:
        llm, version = start({**settings, **feeds}, record)
    except BaseException:
        if events is not None:
            events.close()
        raise
    there = llm.vllm_config
    config = to_engine_config(
        there,
        names=settings["served_model_name"],
        eos_token_ids=to_eos_ids(
            tokenizer.eos_token_id, there.model_config.try_get_generation_config()
        ),
        bos_token_id=tokenizer.bos_token_id,
    )
    config = with_media(config, media_limits(llm), there.model_config)
    return Launched(llm=llm, config=config, meters=meters, events=events, version=version)
