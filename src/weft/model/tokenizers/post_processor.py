"""Special tokens around a text, in the form of tokenizer.json, for tokenizers converted from other files."""

from collections.abc import Mapping

Token = tuple[str, int]  # text and id of a token


def surround(
    before: Token | None, after: Token | None, *, second_type: int = 0
) -> dict[str, object] | None:
    """Returns a post-processor that puts these tokens before and after each text.

    The second text of a pair has the type id `second_type`.
    """
    tokens = [token for token in (before, after) if token is not None]
    if not tokens:
        return None

    def around(text: str, type_id: int) -> list[Mapping[str, object]]:
        first, last = (
            [{"SpecialToken": {"id": token[0], "type_id": type_id}}] if token else []
            for token in (before, after)
        )
        return [*first, {"Sequence": {"id": text, "type_id": type_id}}, *last]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", second_type)],
        "special_tokens": {
            text: {"id": text, "ids": [token_id], "tokens": [text]} for text, token_id in tokens
        },
    }
