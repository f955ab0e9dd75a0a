"""Opens an engine in this process as a benchmark target. Only this module imports the engine, which the distribution
`weft-bench` does not contain.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from weft.bench.targets.engine_target import EngineTarget
from weft.bench.targets.open_targets import Opened, sampling_params
from weft.bench.words import IdMaker
from weft.core.config.defaults import UNLIMITED_QUEUE
from weft.core.config.engine_options import EngineOptions
from weft.engine.llm.async_llm import running
from weft.engine.start.fit import find_and_fit
from weft.text.tokenizer import Tokenizer


@asynccontextmanager
async def open_engine(options: EngineOptions, temperature: float | None) -> AsyncIterator[Opened]:
    """Loads a model in this process and yields its target. Answers ignore the end-of-sequence token, so that they have
    the requested length.
    """
    options = msgspec.structs.replace(options, **UNLIMITED_QUEUE)
    fitted = find_and_fit(options, is_shared=True).with_tokenizer()
    async with running(fitted) as client:
        model = client.model_config
        tokenizer = Tokenizer.from_files(
            fitted.checkpoint.tokenizer_files, fitted.checkpoint.parsed_tokenizer
        )
        given = {} if temperature is None else {"temperature": temperature}
        params = sampling_params(model.default_sampling_params, given, ignore_eos=True)
        target = EngineTarget(client, model.served_model_name, params)
        yield Opened(target, IdMaker(min(model.vocab_size, tokenizer.vocab_size), tokenizer))
