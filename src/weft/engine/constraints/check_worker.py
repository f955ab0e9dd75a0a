"""The child process that test-builds grammars: `python -m weft.engine.constraints.check_worker`.

The setup line has the tokenizer and the width of the model's logits. Each further line is a constraint; the answer is
the grammar's text, after the grammar was built and its first mask was computed (see `weft.core.aio.worker`).
"""

import json
from functools import partial
from typing import Any

from weft.core.aio.worker import Answerer, serve_lines
from weft.engine.constraints.grammar import (
    GrammarFailed,
    GrammarState,
    GrammarVocabulary,
    build,
    one_line,
)
from weft.engine.constraints.text import to_grammar_text


def main() -> None:
    serve_lines(_prepare)


def _prepare(setup: dict[str, Any]) -> Answerer:
    try:
        vocabulary = GrammarVocabulary.read(
            setup["tokenizer"], setup["vocab_size"], tuple(setup["eos_token_ids"])
        )
    except ValueError as error:
        refusal = {"error": f"no grammar works with this tokenizer ({one_line(str(error))})"}
        return lambda _: refusal
    return partial(_answer, vocabulary, vocabulary.special_ids())


def _answer(
    vocabulary: GrammarVocabulary, special_ids: dict[str, int], line: str
) -> dict[str, str]:
    params = json.loads(line)
    try:
        text = to_grammar_text(
            params["kind"], params["value"], params["whitespace_pattern"], special_ids
        )
        GrammarState(build(vocabulary, text), vocabulary).mask()
    except (GrammarFailed, ValueError) as error:
        return {"error": one_line(str(error))}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except BaseException as error:  # noqa: BLE001 - the library's panics are BaseExceptions
        return {"error": f"it cannot be built ({type(error).__name__})"}
    return {"grammar": text}


if __name__ == "__main__":
    main()
