"""A program that loads a model and generates one token; `start.py` times it from outside.

It prints, as one line of JSON, when it was where on the clock that all processes share; then it waits
to be read from /proc, until its standard input closes.
"""

import json
import sys
import time

from weft.core.values.types import SamplingParams
from weft.engine.llm.offline import LLM

imported = time.monotonic()
packed_bytes = int(sys.argv[4])
with LLM(sys.argv[1], max_model_len=int(sys.argv[2]), packed_cache_bytes=packed_bytes) as llm:
    loaded = time.monotonic()
    llm.generate(
        [json.loads(sys.argv[3])],
        SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
        use_tqdm=False,
    )
    first = time.monotonic()
    print(json.dumps({"imported": imported, "loaded": loaded, "first token": first}), flush=True)
    sys.stdin.read()
