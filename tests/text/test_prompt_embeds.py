"""Embeddings as a prompt: which files and arrays are read, and that nothing of a file is run."""

import io
import zipfile
from base64 import b64encode

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save

from tests.text.test_prepare import LEN, TOKENIZER, config
from tests.text.vocabularies import llama_like_library, with_bos
from weft.core.checks.validate import Limits
from weft.core.errors import BadRequest
from weft.core.values.prompts import EmbeddedTokens, EmbedsPart, Prompt, TextPart, TokensPart
from weft.core.values.types import RequestOptions, SamplingParams
from weft.text import prompt_embeds
from weft.text.prepare import InputProcessor
from weft.text.prompt_embeds import read_base64

SIZE = 6
ROWS = (torch.arange(4 * SIZE, dtype=torch.float32) / 8 - 1).reshape(4, SIZE)
ENABLED = msgspec.structs.replace(config(), prompt_embeds_size=SIZE)
LIMITS = Limits.of(ENABLED)


def torch_file(tensor: object) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def zip_file(
    pickled: bytes, *, stored: bytes = bytes(4 * SIZE), compression=zipfile.ZIP_STORED
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", stored)
    return file.getvalue()


def read(data: bytes, limits: Limits = LIMITS) -> np.ndarray:
    part = read_base64(b64encode(data).decode(), limits)
    return np.frombuffer(part.rows, np.float32).reshape(part.num_tokens, -1)


def process(prompt, params=None, limits=ENABLED, **options):
    asked = RequestOptions(request_id="r", **options)
    return InputProcessor(limits, TOKENIZER).process(prompt, params or SamplingParams(), asked)


def embeds(rows=ROWS, **keys):
    return {"prompt_embeds": rows.numpy(), **keys}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("write", [torch_file, lambda tensor: save({"any name": tensor})])
def test_files_of_either_kind_hold_the_same_numbers(dtype, write):
    """As they were saved; a batch of one, and a part of a larger tensor, are read too."""
    tensor = ROWS.to(dtype)
    expected = tensor.float().numpy()
    assert (read(write(tensor)) == expected).all()
    assert (read(write(tensor[None].clone())) == expected).all()
    assert (read(torch_file(tensor[1:3])) == expected[1:3]).all()


BAD_FILES = {
    "empty": b"",
    "no file": b"\0" * 100,
    "a long header": (1 << 40).to_bytes(8, "little") + b"{}",
    "a cut safetensors": save({"a": ROWS})[:-1],
    "two tensors": save({"a": ROWS, "b": ROWS.clone()}),
    "float64": save({"a": ROWS.double()}),
    "torch's float64": torch_file(ROWS.double()),
    "integers": torch_file(ROWS.int()),
    "one dimension": torch_file(ROWS[0].clone()),
    "two batches": save({"a": ROWS.reshape(2, 2, SIZE)}),
    "rows of another size": torch_file(ROWS[:, :-1].contiguous()),
    "no rows": save({"a": ROWS[:0]}),
    "too many rows": save({"a": torch.zeros(LEN, SIZE)}),
    "transposed": torch_file(ROWS.T.contiguous().T),
    "sparse": torch_file(ROWS.to_sparse()),
    "a list": torch_file([ROWS]),
    "a parameter": torch_file(torch.nn.Parameter(ROWS)),
    "a cut zip": torch_file(ROWS)[:-30],
    "torch's older form": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
    "a pickle that calls": zip_file(b"\x80\x02cpytest\nfail\nX\x03\0\0\0run\x85R."),
    "a pickle without an end": zip_file(b"\x80\x02"),
    "a pickle that takes too much": zip_file(b"\x80\x02\x86."),
    "a pickle of a huge memo": zip_file(b"\x80\x02)r\xff\xff\xff\xff."),
    "a long pickle": zip_file(b"\x80\x02" + b"(" * 5000 + b"."),
    "compressed": zip_file(b"\x80\x02).", compression=zipfile.ZIP_DEFLATED),
    "many entries": zip_file(b"PK\x01\x02" * 65),
}


@pytest.mark.parametrize("data", BAD_FILES.values(), ids=BAD_FILES)
def test_any_other_file_is_refused(data):
    """By the field's name, whatever is wrong, and nothing of a pickle happens."""
    with pytest.raises(BadRequest) as caught:
        read(data)
    assert caught.value.parameter in ("prompt_embeds", "prompt")


def test_a_file_that_says_less_than_it_needs_is_refused():
    """The shape of a tensor may not reach past its numbers."""
    whole = torch_file(ROWS[:2].clone())
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        pickled = archive.read("archive/data.pkl")
    with pytest.raises(BadRequest, match="has 20 bytes of float32"):
        read(zip_file(pickled, stored=bytes(20)))


def test_an_entry_behind_another_of_its_name_is_not_unpacked():
    """It might be a thousand times what was sent; the stored one, which is no larger than it looks, counts."""
    rows = ROWS[:2].clone()
    file = io.BytesIO(torch_file(rows))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data/0"))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(name, bytes(4 * rows.numel()))
    assert np.array_equal(read(file.getvalue()), rows.numpy())


@pytest.mark.parametrize("text", ["!", "AAA", "ä"])
def test_what_is_not_base64_is_refused(text):
    """Before anything is read of it."""
    with pytest.raises(BadRequest, match="prompt_embeds is not base64"):
        read_base64(text, LIMITS)


@pytest.mark.parametrize(
    ("prompt", "params", "parameter"),
    [
        (embeds(), SamplingParams(prompt_logprobs=1), "prompt_logprobs"),
        (embeds(), SamplingParams(truncate_prompt_tokens=2), "truncate_prompt_tokens"),
        (embeds(prompt_token_ids=[5]), None, "prompt_embeds"),
        (embeds(prompt_pair="x"), None, "prompt_pair"),
        (embeds(ROWS.double()), None, "prompt_embeds"),
        (embeds(ROWS[:, :3]), None, "prompt_embeds"),
        (embeds(ROWS[:0]), None, "prompt_embeds"),
        (embeds(ROWS[0]), None, "prompt_embeds"),
        (embeds(ROWS * torch.inf), None, "prompt_embeds"),
        ({"prompt_embeds": "AAAA"}, None, "prompt_embeds"),
        ({"prompt_embeds": [[1, "x"]]}, None, "prompt_embeds"),
        ({"prompt_embeds": ROWS.bfloat16()}, None, "prompt_embeds"),
        (Prompt(parts=(EmbedsPart(bytes(7), 1),)), None, "prompt_embeds"),
    ],
)
def test_a_prompt_that_cannot_be_followed_is_refused(prompt, params, parameter):
    """By the name of what does not go."""
    with pytest.raises(BadRequest) as caught:
        process(prompt, params)
    assert caught.value.parameter == parameter


def test_parts_of_a_prompt_are_bounded_together(monkeypatch):
    """They cross to the engine in one message, and one that is too long would never arrive."""
    part = EmbedsPart(ROWS.numpy().tobytes(), len(ROWS))
    monkeypatch.setattr(prompt_embeds, "MAX_BYTES", 2 * len(part.rows))
    two, three = (Prompt(parts=(part, TokensPart([5]), *(part,) * n)) for n in (1, 2))
    assert len(process(two).prompt_embeds) == 2
    with pytest.raises(BadRequest, match="bytes as float32 in all parts of a prompt together"):
        process(three)


def test_they_are_off_unless_enabled():
    """The refusal names the flag, before a byte of a file is decoded."""
    with pytest.raises(BadRequest, match="--enable-prompt-embeds"):
        process(embeds(), limits=config())
    with pytest.raises(BadRequest, match="--enable-prompt-embeds"):
        read_base64("no base64", Limits.of(config()))


def test_cached_blocks_are_of_these_embeddings_alone():
    """Token ids only stand for them, so the salt tells prompts apart; no caller can write such a salt."""
    salts = [
        process(prompt).cache_salt
        for prompt in (embeds(), embeds(cache_salt="s"), embeds(-ROWS), embeds(ROWS[:2]))
    ]
    assert len(set(salts)) == 4
    assert process(embeds(prompt="a label")).cache_salt == salts[0]
    with pytest.raises(BadRequest):
        process({"prompt_token_ids": [0], "cache_salt": salts[0]})


def test_the_request_has_rows_and_ids_in_their_place():
    """As many ids as rows, for all that counts them; torch's tensors are taken as they are."""
    request = process({"prompt_embeds": ROWS, "prompt": "a label"})
    assert request.prompt_embeds == [
        EmbeddedTokens(start=0, num_tokens=4, rows=ROWS.numpy().tobytes())
    ]
    assert (request.prompt_token_ids, request.prompt) == ([0] * 4, "a label")


def test_they_may_stand_between_texts_and_ids():
    """Each where it is in the prompt; special tokens are around the whole."""
    tokenizer = with_bos(llama_like_library(), "<s>")
    rows = EmbedsPart(ROWS.numpy().tobytes(), 4)
    prompt = Prompt(parts=(TextPart("Hello"), rows, TokensPart([11]), rows))
    asked = RequestOptions(request_id="r")
    request = InputProcessor(ENABLED, tokenizer).process(prompt, SamplingParams(), asked)
    before = [*tokenizer.encode(""), *tokenizer.encode("Hello", add_special_tokens=False)]
    assert request.prompt_token_ids == [*before, 0, 0, 0, 0, 11, 0, 0, 0, 0]
    starts = [one.start for one in request.prompt_embeds]
    assert starts == [len(before), len(before) + 5]
