"""What surrounds a text stays when the text is cut."""

import pytest
import tokenizers
from tokenizers import processors

from tests.text.vocabularies import byte_level_library, files_of
from weft.text.tokenizer import Tokenizer


def framed(single="[1] $A [2]", pair="[1] $A [2] $B:1 [2]:1", **config):
    """A byte-level tokenizer that puts tokens around texts."""
    library = tokenizers.Tokenizer.from_str(byte_level_library().to_str())
    library.add_special_tokens(["[1]", "[2]"])
    ids = [(token, library.token_to_id(token)) for token in ("[1]", "[2]")]
    library.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=ids
    )
    return Tokenizer.from_files(files_of(library, **config)), *(i for _, i in ids)


def encode(tokenizer, *texts, max_tokens=None, side="right", special=True):
    return tokenizer.encode_framed(
        texts, add_special_tokens=special, max_tokens=max_tokens, side=side
    )


def test_one_text_is_as_the_library_has_it():
    """The same ids as `encode`, all of type 0."""
    tokenizer, *_ = framed()
    encoded = encode(tokenizer, "some text")
    assert encoded.ids == tokenizer.encode("some text")
    assert set(encoded.type_ids) == {0}
    plain = tokenizer.encode("some text", add_special_tokens=False)
    assert encode(tokenizer, "some text", special=False).ids == plain


@pytest.mark.parametrize(("side", "kept"), [("right", slice(3)), ("left", slice(-3, None))])
def test_a_cut_text_keeps_what_surrounds_it(side, kept):
    """Five tokens: two around, three of the text."""
    tokenizer, first, last = framed()
    plain = tokenizer.encode("xyzuvw", add_special_tokens=False)
    encoded = encode(tokenizer, "xyzuvw", max_tokens=5, side=side)
    assert encoded.ids == [first, *plain[kept], last]


def test_a_pair_has_two_types():
    """As the library has it."""
    tokenizer, first, last = framed()
    a, b = (tokenizer.encode(text, add_special_tokens=False) for text in ("xyz", "uv"))
    encoded = encode(tokenizer, "xyz", "uv")
    assert encoded.ids == [first, *a, last, *b, last]
    assert encoded.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)


@pytest.mark.parametrize(
    ("texts", "lengths"),
    [(("x", "uvwxyz"), (1, 4)), (("uvwxyz", "x"), (4, 1)), (("xyzu", "uvwx"), (2, 3))],
)
def test_the_longer_text_of_a_pair_gives_way(texts, lengths):
    """Eight tokens: three around, five of the texts."""
    tokenizer, _, last = framed()
    encoded = encode(tokenizer, *texts, max_tokens=8)
    middle = encoded.ids.index(last)
    assert (middle - 1, len(encoded.ids) - middle - 2) == lengths


def test_room_for_the_frame_alone_leaves_no_text():
    """Never more than asked for, as far as that is possible."""
    tokenizer, first, last = framed()
    assert encode(tokenizer, "xyz", max_tokens=2).ids == [first, last]
    assert encode(tokenizer, "xyz", max_tokens=1).ids == [first, last]
