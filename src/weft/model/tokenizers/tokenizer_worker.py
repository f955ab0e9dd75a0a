"""The child process that tests a tokenizer.json: `python -m weft.model.tokenizers.tokenizer_worker`.

The setup line has the limits; each further line is the text of a file. The worker answers when the tokenizer was
loaded, checked and used (see `weft.core.aio.worker`). A tokenizer that passes can be used in the server's own process.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tokenizers import Tokenizer

from weft.core.aio.worker import serve_lines

# The longest tokens in use are runs of some hundred spaces; the longest replacement of one character has 18.
MAX_TOKEN_CHARS: Final = 4096
MAX_GROWTH: Final = 64
_MAX_STEPS: Final = 64
_MAX_SPECIAL_TOKENS: Final = 64
# Letters of several scripts, digits, signs, and runs of characters on which regular expressions can be slow.
_SAMPLES: Final = (
    "The quick brown fox can't jump over 12,345.67 lazy dogs' \t\r\n\n  {\"a\": [1, 2]} <|x|> </s> ",
    "Ça été über naïve Привет мир שלום עולם مرحبا こんにちは 你好，世界 안녕 हिन्दी ไทย 👩‍👩‍👧 ﷺ ½ ﬁ ",
    *(char * 512 for char in "a 1\n.-Aé中\t'"),
    "ab" * 256,
    "a " * 256,
    "1.a' " * 100,
)
_NUM_DECODED: Final = 256


class UnusableTokenizer(Exception):
    """The reason why the tokenizer is not used."""


def main() -> None:
    """Runs the worker for its parent process."""
    serve_lines(lambda _setup: _answer)


def _answer(line: str) -> dict[str, str]:
    try:
        tokenizer = Tokenizer.from_str(json.loads(line))
        _look_through(tokenizer)
        _use(tokenizer)
    except MemoryError:
        return {"error": "it takes too much memory"}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - the library's panics are BaseExceptions
        return {"error": " ".join(str(error).split())[:200] or type(error).__name__}
    return {}


def _look_through(tokenizer: Tokenizer) -> None:
    """Raises `UnusableTokenizer` for a tokenizer that can turn a text of normal length into gigabytes."""
    for name in ("normalizer", "decoder"):
        growth = 1.0
        for step in _steps(tokenizer, name):
            growth *= _growth(step)
        if growth > MAX_GROWTH:
            raise UnusableTokenizer(
                f"its {name} makes some text more than {MAX_GROWTH} times as long"
            )
    for text in _additions(tokenizer):
        if len(text) > MAX_TOKEN_CHARS:
            raise UnusableTokenizer(
                f"it adds {len(text)} characters at once; {MAX_TOKEN_CHARS} are allowed"
            )
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
    if longest > MAX_TOKEN_CHARS:
        raise UnusableTokenizer(f"a token has {longest} characters; {MAX_TOKEN_CHARS} are allowed")
    count = max(map(tokenizer.num_special_tokens_to_add, (False, True)))
    if count > _MAX_SPECIAL_TOKENS:
        raise UnusableTokenizer(
            f"it adds {count} tokens to a text; {_MAX_SPECIAL_TOKENS} are allowed"
        )


def _steps(tokenizer: Tokenizer, name: str) -> list[Mapping[str, Any]]:
    """Returns the steps of the tokenizer's part `name`, such as its normalizer, as the file describes them."""
    part = getattr(tokenizer, name)
    steps = [] if part is None else list(_flat(json.loads(part.__getstate__())))
    if len(steps) > _MAX_STEPS:
        raise UnusableTokenizer(f"its {name} has {len(steps)} steps; {_MAX_STEPS} are allowed")
    return steps


def _flat(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for inner in step.get("normalizers") or step.get("decoders") or step.get("pretokenizers") or ():
        yield from _flat(inner)


def _growth(step: Mapping[str, Any]) -> float:
    """Returns the maximum number of characters that a step makes of one character, for steps with texts of the file."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new) / len(old))
        case {"type": "Replace", "content": str(new)}:  # may match before each character
            return 1.0 + len(new)
        case {"type": "Prepend", "prepend": str(new)}:  # added to each part between added tokens
            return 1.0 + len(new)
        case {"type": "Precompiled", "precompiled_charsmap": str(encoded)}:
            data = base64.b64decode(encoded)
            # The data holds the length of a trie, the trie, then the replacement texts, each ending in a NUL.
            texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
            return max(1.0, *(len(text.decode(errors="replace")) for text in texts))
    return 1.0


def _additions(tokenizer: Tokenizer) -> Iterator[str]:
    """Yields the texts that the tokenizer adds to texts and words."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token"):
        yield getattr(tokenizer.model, name, None) or ""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        for step in _steps(tokenizer, name):
            yield from (
                value
                for key, value in step.items()
                if isinstance(value, str) and key != "precompiled_charsmap"
            )


def _use(tokenizer: Tokenizer) -> None:
    """Encodes and decodes samples, so that a failure or hang happens in this process."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for text in _SAMPLES:
        for has_special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=has_special).ids
            tokenizer.decode(ids, skip_special_tokens=not has_special)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    ids = list(range(0, size, max(1, size // _NUM_DECODED)))
    tokenizer.decode(ids, skip_special_tokens=False)


if __name__ == "__main__":
    main()
