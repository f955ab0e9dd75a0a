"""From prompts in every form to checked requests."""

import asyncio
import time
from dataclasses import replace

import msgspec
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.busy import is_within
from tests.text.vocabularies import (
    byte_level,
    byte_level_library,
    files_of,
    llama_like_library,
    metaspace_library,
    with_bos,
    word_library,
)
from weft.core.checks.validate import MAX_CHARS_PER_TOKEN, MAX_SHORT_TEXT_CHARS, Limits
from weft.core.config.engine import EngineConfig, ModelConfig, SchedulerConfig
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.values.kv_cache import CacheConfig
from weft.core.values.prompts import Prompt, TokensPart
from weft.core.values.types import RequestOptions, SamplingParams
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer

LEN = 64
TOKENIZER = byte_level()
IDS = list(range(10, 30))
PLAIN = RequestOptions(request_id="r")


def config(max_model_len=LEN, num_blocks=16):
    return EngineConfig(
        model_config=ModelConfig(
            model="m",
            served_model_names=("m",),
            model_type="llama",
            architectures=("A",),
            dtype="float32",
            vocab_size=400,
            max_model_len=max_model_len,
            eos_token_ids=(1, 7),
            bos_token_id=0,
            pad_token_id=None,
            default_sampling_params={},
            max_logprobs=20,
        ),
        cache_config=CacheConfig(
            block_size=4,
            num_blocks=num_blocks,
            block_bytes=1,
            kv_cache_dtype="float32",
            enable_prefix_caching=True,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=64,
            policy="fcfs",
            max_num_queued_reqs=4,
            max_num_queued_tokens=1000,
        ),
    )


def process(prompt, params=None, tokenizer=TOKENIZER, **options):
    asked = RequestOptions(request_id="r", **options)
    return InputProcessor(config(), tokenizer).process(prompt, params or SamplingParams(), asked)


TEXT_IDS = byte_level().encode("hello")


@pytest.mark.parametrize(
    ("prompt", "token_ids", "text", "salt"),
    [
        ("hello", TEXT_IDS, "hello", None),
        ({"prompt": "hello"}, TEXT_IDS, "hello", None),
        ({"prompt": "hello", "cache_salt": "s"}, TEXT_IDS, "hello", "s"),
        ([5, 6], [5, 6], None, None),
        ((5, 6), [5, 6], None, None),
        ({"prompt_token_ids": [5, 6]}, [5, 6], None, None),
        ({"prompt_token_ids": [5, 6], "prompt": "label", "cache_salt": "s"}, [5, 6], "label", "s"),
    ],
)
def test_every_form_of_prompt_becomes_token_ids(prompt, token_ids, text, salt):
    """Ids win over text, which then is a label."""
    request = process(prompt)
    assert (request.prompt_token_ids, request.prompt, request.cache_salt) == (token_ids, text, salt)


@pytest.mark.parametrize(
    ("prompt", "parameter", "words"),
    [
        (None, "prompt", "type NoneType"),
        (7, "prompt", "type int"),
        (b"x", "prompt", "type bytes"),
        ({}, "prompt", "neither"),
        ({"prompt": 7}, "prompt", "must be text"),
        ({"promt": "x"}, "prompt", "unknown prompt keys"),
        ({"prompt_token_ids": "abc"}, "prompt_token_ids", "list of integers"),
        ({"prompt_embeds": [1.0]}, "prompt_embeds", "float32"),
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        ([400], "prompt_token_ids", "vocabulary"),
        ([-1], "prompt_token_ids", "vocabulary"),
        ([2**70], "prompt_token_ids", "a huge integer|vocabulary"),
        ([True], "prompt_token_ids", "integers"),
        ([1.0], "prompt_token_ids", "integers"),
        ({"prompt": "x", "cache_salt": ""}, "cache_salt", "1 to 256"),
        ({"prompt": "x", "cache_salt": "\n"}, "cache_salt", "printable"),
        ({"prompt": "x", "cache_salt": 5}, "cache_salt", "string"),
        ({"prompt": "x\ud800"}, "prompt", "lone surrogate"),
        ({"prompt_token_ids": [5], "prompt": "x\ud800"}, "prompt", "lone surrogate"),
        (Prompt(parts=(TokensPart([5]),), label="\ud800"), "prompt", "lone surrogate"),
    ],
)
def test_a_malformed_prompt_names_what_is_wrong(prompt, parameter, words):
    """The error says which field, what it was, and what is allowed."""
    with pytest.raises(BadRequest, match=words) as caught:
        process(prompt)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"prompt_text": "\ud800"}, "prompt_text"),
        ({"prompt_text": 5}, "prompt_text"),
        ({"trace_headers": {"traceparent": "\ud800"}}, "trace_headers"),
        ({"trace_headers": {"\ud800": "x"}}, "trace_headers"),
        ({"data_parallel_rank": 0.0}, "data_parallel_rank"),
        ({"data_parallel_rank": "0"}, "data_parallel_rank"),
    ],
)
def test_an_option_that_cannot_be_sent_is_refused_by_name(options, parameter):
    """What crosses to the engine's process has the type that it is read as there, and its texts have bytes."""
    with pytest.raises(BadRequest) as caught:
        process([5], **options)
    assert caught.value.parameter == parameter


def test_an_engine_can_let_grammars_rule_thoughts():
    """Its configuration does for every request what a request can do for itself."""
    rules = msgspec.structs.replace(config(), structured_outputs_in_reasoning=True)
    request = InputProcessor(rules, TOKENIZER).process("x", SamplingParams(), PLAIN)
    assert request.params.grammar_from_first_token
    assert not process("x").params.grammar_from_first_token


def test_parameters_are_checked_before_the_prompt():
    """Clients test their parameters with an empty prompt."""
    with pytest.raises(BadRequest, match=r"top_p must be in \(0, 1\], got -33\.0"):
        process("", SamplingParams(top_p=-33.0))


def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers():
    """Prompt plus one output token must fit the context."""
    assert len(process([5] * (LEN - 1)).prompt_token_ids) == LEN - 1
    with pytest.raises(ContextLengthExceeded, match="64 tokens, and the prompt has 64"):
        process([5] * LEN)


def test_a_text_too_long_to_fit_is_refused_before_it_is_encoded():
    """Encoding megabytes only to refuse them would hold a thread."""
    with pytest.raises(ContextLengthExceeded, match="characters, of which at most 2304"):
        process("a" * 1_000_000)
    with pytest.raises(ContextLengthExceeded, match="and the prompt has"):
        process("a" * 400)


@pytest.mark.parametrize(
    ("kept", "kwargs", "expected"),
    [
        (5, {}, IDS[-5:]),
        (5, {"truncation_side": "left"}, IDS[-5:]),
        (5, {"truncation_side": "right"}, IDS[:5]),
        (None, {"truncate_prompt_tokens": 3}, IDS[-3:]),
        (3, {"truncate_prompt_tokens": 3}, IDS[-3:]),
        (-1, {}, IDS),
        (50, {}, IDS),
    ],
)
def test_token_prompts_are_truncated_too(kept, kwargs, expected):
    """The end is kept, being what the answer follows, unless the caller says otherwise."""
    params = SamplingParams(truncate_prompt_tokens=kept)
    request = process(IDS, params, tokenization_kwargs=kwargs)
    assert request.prompt_token_ids == expected


def test_no_text_is_cut_into_more_than_so_many_tokens_a_character():
    """However long the vocabulary's longest token is; a short text may hold anything."""
    limits = Limits(vocab_size=400, max_model_len=1_000_000, max_pool_tokens=1_000_000)
    assert limits.max_text_chars == MAX_CHARS_PER_TOKEN * 1_000_000
    assert replace(limits, max_model_len=8).max_text_chars == MAX_SHORT_TEXT_CHARS


def test_a_text_to_truncate_is_bounded_too():
    """What of it is kept cannot be known without cutting all of it."""
    library = tokenizers.Tokenizer.from_str(byte_level_library().to_str())
    library.add_tokens(["x" * 100_000])
    long_token = Tokenizer.from_files(files_of(library))
    params = SamplingParams(truncate_prompt_tokens=1)
    with pytest.raises(ContextLengthExceeded, match=f"at most {MAX_SHORT_TEXT_CHARS} are taken"):
        process("a" * (MAX_SHORT_TEXT_CHARS + 1), params, tokenizer=long_token)


async def test_bad_words_are_encoded_on_a_thread():
    """There may be hundreds, each in two spellings."""
    params = SamplingParams(bad_words=["a", "b"])
    processor = InputProcessor(config(), TOKENIZER)
    work = asyncio.create_task(processor.prepare([5], params, PLAIN))
    await asyncio.sleep(0)
    assert not work.done()
    assert (await work).bad_token_ids


@pytest.mark.parametrize(("side", "expected"), [("left", TEXT_IDS[-1]), ("right", TEXT_IDS[0])])
def test_a_text_far_beyond_the_context_is_truncated_at_once(side, expected):
    """Only the kept end of a huge text is encoded."""
    started = time.process_time()
    request = process(
        "hello" + " " * 5_000_000 + "hello",
        SamplingParams(truncate_prompt_tokens=1),
        tokenization_kwargs={"truncation_side": side},
    )
    assert is_within(time.process_time() - started, 1)
    assert request.prompt_token_ids == [expected]


def test_minus_one_truncates_to_what_the_context_takes():
    """One place is left for the answer."""
    request = process([5] * 1000, SamplingParams(truncate_prompt_tokens=-1))
    assert len(request.prompt_token_ids) == LEN - 1


def test_the_tokenizers_own_truncation_side_is_the_default():
    """Some models want their prompts cut at the end."""
    tokenizer = Tokenizer.from_files(files_of(byte_level_library(), truncation_side="right"))
    request = process(IDS, SamplingParams(truncate_prompt_tokens=2), tokenizer)
    assert request.prompt_token_ids == IDS[:2]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"padding": True}, "unknown tokenization_kwargs"),
        ({"add_special_tokens": 1}, "add_special_tokens must be true or false"),
        ({"truncation_side": "up"}, "truncation_side"),
        ({"truncate_prompt_tokens": LEN + 1}, "at most 64"),
        ({"truncate_prompt_tokens": 0}, "got 0"),
        ({"truncate_prompt_tokens": 4}, "give it once"),
    ],
)
def test_bad_tokenization_options_are_refused(kwargs, words):
    """No option is accepted and ignored."""
    with pytest.raises(BadRequest, match=words):
        process("hi", SamplingParams(truncate_prompt_tokens=5), tokenization_kwargs=kwargs)


def test_special_tokens_are_added_unless_told_not_to():
    """A chat template writes them itself."""
    tokenizer = with_bos(byte_level_library(), "<|start|>")
    framed = process("hello", tokenizer=tokenizer)
    without = process(
        "hello", tokenizer=tokenizer, tokenization_kwargs={"add_special_tokens": False}
    )
    assert framed.prompt_token_ids == [0, *without.prompt_token_ids]


def test_without_a_tokenizer_only_token_ids_work():
    """And nothing that needs text."""
    assert process([5], tokenizer=None).prompt_token_ids == [5]
    with pytest.raises(BadRequest, match="no tokenizer"):
        process("hi", tokenizer=None)
    with pytest.raises(BadRequest, match="stop strings need a tokenizer"):
        process([5], SamplingParams(stop="x"), None)


def test_a_request_is_complete():
    """Ids differ between two requests with one label; what was left open is filled in."""
    before = time.monotonic()
    first, second = (process([5], SamplingParams(max_tokens=None), priority=-3) for _ in range(2))
    assert first.request_id == second.request_id == "r"
    assert first.engine_id != second.engine_id
    assert len(first.engine_id) == len("r-") + 8
    assert first.params.max_tokens == LEN - 1
    assert first.eos_token_ids == (1, 7)
    assert first.seed != second.seed
    assert 0 <= first.seed < 2**63
    assert first.priority == -3
    assert before <= first.arrival_time <= time.monotonic()


def test_a_given_seed_is_used():
    """-1 means that none was given."""
    assert process([5], SamplingParams(seed=42)).seed == 42
    assert process([5], SamplingParams(seed=-1)).seed != -1


def test_prompt_text_only_labels():
    """It fills the output's prompt and changes nothing else."""
    request = process([5], prompt_text="label")
    assert (request.prompt, request.prompt_token_ids) == ("label", [5])


@pytest.mark.parametrize("request_id", ["", "x" * 257, "a\nb", "\ud800", 7])
def test_request_ids_are_short_and_printable(request_id):
    """They go into logs and headers."""
    with pytest.raises(BadRequest) as caught:
        InputProcessor(config(), None).process(
            [5], SamplingParams(), RequestOptions(request_id=request_id)
        )
    assert caught.value.parameter == "request_id"


def test_an_answer_never_outgrows_the_pool():
    """A sequence that needs more than every block could never finish."""
    processor = InputProcessor(config(num_blocks=4), None)
    assert processor.process([5] * 10, SamplingParams(max_tokens=50), PLAIN).params.max_tokens == 6
    with pytest.raises(ContextLengthExceeded, match="whole KV cache holds 16"):
        processor.process([5] * 16, SamplingParams(), PLAIN)


def prefixing_library():
    """Byte-level, with a space put before every text that has none."""
    library = byte_level_library().from_str(byte_level_library().to_str())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return library


def merging_library():
    """A word of one token behind a space, and of several at the start of a text."""
    vocab = {name: i for i, name in enumerate(["Ġ", *"abcde", "Ġa", "Ġab", "cd"])}
    library = tokenizers.Tokenizer(
        models.BPE(vocab, [("Ġ", "a"), ("Ġa", "b"), ("c", "d")], unk_token=None)
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return library


def first_metaspace_library():
    """As newer Llama and Mistral files have it: the first word alone gets its mark."""
    library = metaspace_library().from_str(metaspace_library().to_str())
    library.normalizer = None
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return library


WORDS = [
    "hello",
    " hello",
    "Hello",
    "ab",
    "cd",
    "e",
    "w",
    "你",
    "Löwe",
    "the quick",
    "a b",
    "  ab ",
    ".",
]
LIBRARIES = {
    "byte-level": byte_level_library,
    "byte-level with a prefix space": prefixing_library,
    "byte-level that merges spaces": merging_library,
    "sentencepiece": llama_like_library,
    "metaspace": metaspace_library,
    "metaspace at the first word": first_metaspace_library,
    "wordpiece": word_library,
}


def reference_bad_ids(tokenizer, words):
    """What vLLM's `SamplingParams.update_from_tokenizer` makes of them with transformers' tokenizer."""
    found = []
    for word in words:
        for prefix in ("", " "):
            ids = tokenizer.encode(text=prefix + word.lstrip(), add_special_tokens=False)
            if not prefix or (ids[0] != found[-1][0] and len(ids) == len(found[-1])):
                found.append(ids)
    return found


@pytest.mark.parametrize("name", LIBRARIES)
def test_bad_words_are_the_tokens_that_vllm_bans(name):
    """One token more or less, and greedy answers differ."""
    library = LIBRARIES[name]()
    theirs = PreTrainedTokenizerFast(tokenizer_object=library.from_str(library.to_str()))
    ours = Tokenizer.from_files(files_of(library))
    words = [word for word in WORDS if theirs.encode(word.lstrip(), add_special_tokens=False)]
    assert words
    for word in words:
        request = process(IDS, SamplingParams(bad_words=[word]), tokenizer=ours)
        assert request.bad_token_ids == reference_bad_ids(theirs, [word]), word
    together = process(IDS, SamplingParams(bad_words=words), tokenizer=ours).bad_token_ids
    assert {*map(tuple, together)} == {*map(tuple, reference_bad_ids(theirs, words))}


def test_bad_words_need_a_tokenizer():
    """Without one they have no tokens."""
    with pytest.raises(BadRequest, match="bad_words need a tokenizer"):
        process(IDS, SamplingParams(bad_words=["a"]), tokenizer=None)
