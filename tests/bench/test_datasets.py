"""What is sent: weft.bench.datasets and words."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.model.bpe_files import GPT2_TOKENS, write_bpe_files
from weft.bench.datasets import check_prompts, make_prompts
from weft.bench.prompt_options import PromptOptions
from weft.bench.targets.open_targets import read_tokenizer
from weft.bench.words import IdMaker, TextMaker, WordMaker
from weft.core.errors import ConfigError

IDS = IdMaker(512, None)
WORDS = WordMaker(2.0)


@pytest.fixture(scope="module")
def tokenizer():
    return read_tokenizer("embedded:tiny")


def made(maker=IDS, seed=0, **options):
    given = PromptOptions(**options)
    check_prompts(given)
    return make_prompts(given, maker, np.random.default_rng(seed))


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_sharegpt(path, turns):
    rows = [{"conversations": [{"value": text} for text in texts]} for texts in turns]
    path.write_text(json.dumps(rows))
    return path


def test_random_prompts_have_the_lengths_that_are_asked_for():
    """Ids are exact; the general names of lengths win over the dataset's own."""
    prompts = made(num_prompts=5, random_input_len=9, output_len=3)
    assert {(len(p.content), p.output_len) for p in prompts} == {(9, 3)}


def test_a_range_spreads_the_lengths_evenly():
    """From (1 - ratio) to (1 + ratio) of the length, both ends among them."""
    prompts = made(num_prompts=2000, input_len=10, output_len=100, random_range_ratio=0.5)
    lengths = Counter(len(p.content) for p in prompts)
    assert (min(lengths), max(lengths)) == (5, 15)
    assert min(lengths.values()) > 100
    assert np.mean([p.output_len for p in prompts]) == pytest.approx(100, rel=0.05)


def test_a_random_prefix_is_shared_by_all():
    """It comes before the length, as in vLLM."""
    prompts = made(num_prompts=4, random_prefix_len=6, input_len=3)
    assert len({tuple(p.content[:6]) for p in prompts}) == 1
    assert len({tuple(p.content) for p in prompts}) == 4
    assert {len(p.content) for p in prompts} == {9}


def test_prefixes_are_repeated_evenly():
    """Every one of the prompts is sent, though prefixes do not divide them."""
    prompts = made(
        dataset_name="prefix_repetition",
        num_prompts=10,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_prefix_len=8,
        prefix_repetition_suffix_len=4,
    )
    assert sorted(Counter(tuple(p.content[:8]) for p in prompts).values()) == [3, 3, 4]
    assert {len(p.content) for p in prompts} == {12}


def test_the_seed_decides_what_is_sent():
    """So that two servers get the same."""
    assert made(num_prompts=3) == made(num_prompts=3) != made(num_prompts=3, seed=1)


def test_text_is_as_long_as_the_tokenizer_says(tokenizer):
    """Text of random ids is cut and filled until it reads as so many."""
    prompts = made(TextMaker(tokenizer), num_prompts=5, input_len=40)
    counts = [len(tokenizer.encode(p.content, add_special_tokens=False)) for p in prompts]
    assert counts == [40] * 5


def test_ids_leave_out_special_tokens(tokenizer):
    """A prompt with an end of text in it is another kind of prompt."""
    ids = IdMaker(tokenizer.vocab_size, tokenizer).make(20_000, np.random.default_rng(0))
    assert tokenizer.special_ids.isdisjoint(ids)


def test_without_a_tokenizer_words_stand_for_tokens():
    """As many as the server was seen to take for the length."""
    (prompt,) = made(WORDS, num_prompts=1, input_len=40)
    assert len(prompt.content.split()) == 20


def test_conversations_give_their_first_turn_and_the_length_of_the_second(tmp_path, tokenizer):
    """ShareGPT's format; too short ones are left out, as in vLLM."""
    question, answer = "What is the capital of France, please?", "It is Paris, on the Seine."
    path = write_sharegpt(tmp_path / "s.json", [[question, answer], ["Hi", answer], [question]])
    prompts = made(TextMaker(tokenizer), dataset_name="sharegpt", dataset_path=path, num_prompts=2)
    length = len(tokenizer.encode(answer, add_special_tokens=False))
    assert [(p.content, p.output_len) for p in prompts] == [(question, length)] * 2


def test_conversations_without_a_tokenizer_need_the_length(tmp_path):
    """Nothing is guessed."""
    path = write_sharegpt(tmp_path / "s.json", [["question", "answer"]])
    options = {"dataset_name": "sharegpt", "dataset_path": path, "num_prompts": 1}
    with pytest.raises(ConfigError, match="--tokenizer"):
        made(WORDS, **options)
    assert made(WORDS, sharegpt_output_len=7, **options)[0].output_len == 7


def test_lines_of_json_are_sent_as_they_are(tmp_path):
    """Texts or messages; the length is the flag's, or the line's own."""
    messages = [{"role": "user", "content": "b"}]
    rows = [{"prompt": "a", "output_tokens": 5}, {"prompt": messages, "output_tokens": 6}]
    path = write_lines(tmp_path / "c.jsonl", rows)
    options = {"dataset_name": "custom", "dataset_path": path, "num_prompts": 2}
    own = made(WORDS, custom_output_len=-1, disable_shuffle=True, **options)
    assert [(p.content, p.output_len) for p in own] == [("a", 5), (tuple(messages), 6)]
    assert {p.output_len for p in made(WORDS, **options)} == {256}


@pytest.mark.parametrize(("no_oversample", "num"), [(False, 5), (True, 2)])
def test_a_short_file_is_sent_again_unless_it_is_not_to_be(tmp_path, no_oversample, num):
    """So that --num-prompts holds."""
    path = write_lines(tmp_path / "c.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    prompts = made(
        dataset_name="custom", dataset_path=path, num_prompts=5, no_oversample=no_oversample
    )
    assert len(prompts) == num
    assert {p.content for p in prompts} == {"a", "b"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset_name": "custom"}, "--dataset-path"),
        ({"dataset_path": "x"}, "--dataset-path"),
        ({"num_prompts": 0}, "--num-prompts"),
        ({"random_range_ratio": 1.0}, "--random-range-ratio"),
        ({"input_len": 0}, "--input-len"),
        ({"random_prefix_len": -1}, "--random-prefix-len"),
        ({"prefix_repetition_num_prefixes": 0}, "--prefix-repetition-num-prefixes"),
    ],
)
def test_prompts_that_cannot_be_made_are_refused_by_their_flag(options, said):
    """Before anything is sent."""
    with pytest.raises(ConfigError, match=said):
        check_prompts(PromptOptions(**options))


@pytest.mark.parametrize(
    ("text", "said"), [("", "no usable prompt"), ("{", "c.jsonl:1"), ('{"prompt": 3}', "c.jsonl:1")]
)
def test_a_file_that_cannot_be_read_is_refused_by_its_line(tmp_path, text, said):
    """The line is the one to mend."""
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        made(dataset_name="custom", dataset_path=path)


def test_tokenizers_of_old_are_read_as_the_server_reads_them(tmp_path: Path):
    """GPT-2's two files will do; a directory with neither is refused by the same sentence."""
    with pytest.raises(ConfigError, match=r"or GPT-2's vocab.json and merges.txt"):
        read_tokenizer(str(tmp_path))
    write_bpe_files(tmp_path, GPT2_TOKENS, {"tokenizer_class": "GPT2Tokenizer"})
    tokenizer = read_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode("Hello!")) == "Hello!"


def test_lines_of_a_poem_share_a_beginning(tmp_path, tokenizer):
    """About as many tokens as wanted, of which a prefix is the same in all prompts."""
    path = tmp_path / "poem.txt"
    path.write_text("".join(f"line {number} of a long old poem\n" for number in range(200)))
    sizes = {"sonnet_input_len": 120, "sonnet_prefix_len": 60, "sonnet_output_len": 9}
    options = {"dataset_name": "sonnet", "dataset_path": path, "num_prompts": 4, **sizes}
    prompts = made(TextMaker(tokenizer), **options)
    texts = [prompt.content.splitlines() for prompt in prompts]
    assert all(lines[1:4] == [f"line {i} of a long old poem" for i in range(3)] for lines in texts)
    assert len({prompt.content for prompt in prompts}) == 4
    lengths = [len(tokenizer.encode(p.content, add_special_tokens=False)) for p in prompts]
    assert all(abs(length - 120) < 30 for length in lengths)
    assert {prompt.output_len for prompt in prompts} == {9}
    with pytest.raises(ConfigError, match="--tokenizer"):
        made(WORDS, **options)


def test_the_lengths_of_burstgpt_are_those_of_answered_requests_to_gpt_4(tmp_path):
    """Failed requests have no answer, and ChatGPT's are left out, as in vLLM."""
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,30,7,37,API log\n46,GPT-4,90,0,90,API log\n"
    )
    prompts = made(dataset_name="burstgpt", dataset_path=path, num_prompts=3)
    assert [(len(prompt.content), prompt.output_len) for prompt in prompts] == [(30, 7)] * 3


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        ({"conversations": [{"from": "human", "value": "a b c"}, {"value": "d e"}]}, "a b c", "d e"),
        ({"messages": [{"role": "system", "content": "s"}, {"content": "a"}, {"content": "b"}]}, "a", "b"),
        ({"instruction": "add", "input": "1 and 2", "output": "3"}, "add\n1 and 2", "3"),
        ({"question": "why", "answer": "because"}, "why", "because"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_list", [True, False])
def test_rows_of_the_hub_s_datasets_are_found_by_their_columns(
    tmp_path, tokenizer, row, question, answer, as_list
):
    """In a JSON list or JSON lines; the answer's length is the file's, or the flag's."""
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]) if as_list else json.dumps(row) + "\n")
    options = {"dataset_name": "hf", "dataset_path": path, "num_prompts": 1}
    (prompt,) = made(TextMaker(tokenizer), **options)
    length = len(tokenizer.encode(answer, add_special_tokens=False))
    assert (prompt.content, prompt.output_len) == (question, length)
    assert made(WORDS, hf_output_len=3, **options)[0].output_len == 3
    with pytest.raises(ConfigError, match="--hf-output-len"):
        made(WORDS, **options)


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("burstgpt", "b.csv", "Model,Tokens\n", "no column 'Request tokens'"),
        ("burstgpt", "b.csv", "Model,Request tokens,Response tokens\nGPT-4,1,x\n", "line 2"),
        ("burstgpt", "b.csv", "Model,Request tokens,Response tokens\n", "no usable prompt"),
        ("hf", "h.parquet", "PAR1", "to_json"),
        ("hf", "h.json", '[{"other": "a"}]', "no usable prompt"),
        ("hf", "h.jsonl", "{", "h.jsonl:1"),
        ("sonnet", "s.txt", "", "no usable prompt"),
    ],
)
def test_files_of_another_form_are_refused_by_name(tmp_path, tokenizer, name, file, text, message):
    """With the place, before anything is sent."""
    (tmp_path / file).write_text(text)
    options = {"dataset_name": name, "dataset_path": tmp_path / file, "num_prompts": 1}
    with pytest.raises(ConfigError, match=message):
        made(TextMaker(tokenizer), hf_output_len=1, **options)
