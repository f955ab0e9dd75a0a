"""transformers' own generation as one of the engines: a padded batch, since all prompts are of one length."""

import sys
import time
from typing import Any

import torch
import transformers
from protocol import claim_stdout, report, serve


def main() -> None:
    """Load, then answer."""
    pipe = claim_stdout()
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)

    def answer(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        started = time.perf_counter()
        first = _FirstToken()
        with torch.inference_mode():
            model.generate(
                torch.tensor(prompts),
                attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
                do_sample=False,
                min_new_tokens=max_tokens,
                max_new_tokens=max_tokens,
                logits_processor=[first],
            )
        return report(started, [first.at - started] * len(prompts), len(prompts) * max_tokens)

    serve(pipe, answer, "transformers generate", transformers.__version__)


class _FirstToken(transformers.LogitsProcessor):
    """Notes when the first logits were there."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.at = self.at or time.perf_counter()
        return scores


if __name__ == "__main__":
    main()
