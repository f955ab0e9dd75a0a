"""A prompt is parts, whichever form it was given in; one table knows the kinds there are."""

import pytest

from tests.text.test_prepare import TOKENIZER, process
from tests.text.vocabularies import llama_like_library, with_bos
from weft.core.errors import BadRequest
from weft.core.values.prompts import Part, Prompt, TextPart, TokensPart
from weft.text.prompts import KINDS, REFUSED, read_prompt, size_of

IDS = [11, 12, 13]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("Hello", (TextPart("Hello"),)),
        (IDS, (TokensPart(IDS),)),
        (tuple(IDS), (TokensPart(IDS),)),
        ({"prompt": "Hello"}, (TextPart("Hello"),)),
        ({"prompt_token_ids": IDS, "prompt": "Hello"}, (TokensPart(IDS),)),
        (Prompt(parts=(TextPart("a"), TokensPart(IDS))), (TextPart("a"), TokensPart(IDS))),
    ],
)
def test_every_form_is_read_into_parts(given, parts):
    """vLLM's dicts, bare texts and ids, and prompts that are parts already."""
    assert read_prompt(given).parts == parts


def test_every_kind_of_part_has_its_row():
    """A kind without a row would be measured and encoded by nobody."""
    assert set(KINDS) == set(Part.__args__)


@pytest.mark.parametrize("key", REFUSED)
def test_a_kind_that_no_model_takes_is_refused_by_name(key):
    """Where any prompt is read: no way in can ignore it."""
    with pytest.raises(BadRequest, match=f"^{key} is not supported: "):
        process({"prompt": "Hello", key: {"image": b"..."}})


def test_parts_follow_each_other():
    """Each text is encoded by itself; ids stay as they are."""
    prompt = Prompt(parts=(TextPart("Hello"), TokensPart(IDS), TextPart(" world")))
    request = process(prompt, tokenization_kwargs={"add_special_tokens": False})
    first, last = (TOKENIZER.encode(text, add_special_tokens=False) for text in ("Hello", " world"))
    assert request.prompt_token_ids == [*first, *IDS, *last]


def test_special_tokens_go_around_the_whole():
    """They mark where a prompt begins, not where each of its texts does."""
    tokenizer = with_bos(llama_like_library(), "<s>")
    bos = tokenizer.encode("")
    parts = (TextPart("Hello"), TextPart("world"))
    request = process(Prompt(parts=parts), tokenizer=tokenizer)
    texts = [tokenizer.encode(part.text, add_special_tokens=False) for part in parts]
    assert request.prompt_token_ids == [*bos, *texts[0], *texts[1]]


def test_parts_of_ids_alone_get_no_special_tokens():
    """Whoever gives ids has put in what belongs there."""
    request = process(Prompt(parts=(TokensPart(IDS), TokensPart(IDS))))
    assert request.prompt_token_ids == [*IDS, *IDS]


def test_a_label_is_shown_and_not_run():
    """Outputs show it as the prompt's text."""
    request = process(Prompt(parts=(TokensPart(IDS),), label="label"))
    assert (request.prompt, request.prompt_token_ids) == ("label", IDS)


def test_the_work_of_a_prompt_is_that_of_all_its_parts():
    """By it long prompts go to threads: none may hide behind a short one."""
    parts = (TextPart("Hello"), TokensPart(IDS))
    assert size_of(Prompt(parts=parts, second=TextPart("ab"))) == (7, 3)


@pytest.mark.parametrize(
    "parts",
    [(b"raw",), (TextPart(7),), (TokensPart("abc"),), ()],
    ids=["kind", "text", "ids", "none"],
)
def test_parts_are_checked_too(parts):
    """A prompt that callers built is no more trusted than a dict."""
    with pytest.raises(BadRequest):
        process(Prompt(parts=parts))
