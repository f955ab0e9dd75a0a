"""`weft.LLM`: conversations, many prompts at once, and the bar beside them."""

import base64
import io
import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

import weft
from tests.busy import PATIENCE_S
from tests.model.checkpoints import write_checkpoint
from weft.core.errors import BadRequest, ConfigError, Unsupported
from weft.core.observe.progress_bar import progress_bar
from weft.core.values.types import SamplingParams
from weft.engine.llm.metric_values import Counter, Gauge, Histogram

SMALL = (
    "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&intermediate=64&vocab=300"
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def tiny():
    """The model in the package."""
    with weft.LLM() as llm:
        yield llm


def test_a_conversation_is_answered(tiny):
    """One alone, or several in a list; each answer is what the rendered prompt gives by itself."""
    (alone,) = tiny.chat(FRANCE, GREEDY)
    assert "Paris" in alone.outputs[0].text
    both = tiny.chat([HELLO, FRANCE], GREEDY)
    assert both[1].outputs[0].token_ids == alone.outputs[0].token_ids
    assert alone.prompt.count("What is the capital of France?") == 1


def test_a_turn_can_be_continued(tiny):
    """The prompt ends inside the last message, and the answer goes on from there."""
    begun = [*FRANCE, {"role": "assistant", "content": "The capital of France is"}]
    (answer,) = tiny.chat(begun, GREEDY, continue_final_message=True, add_generation_prompt=False)
    assert answer.prompt.endswith("The capital of France is")
    assert answer.outputs[0].text.strip().startswith("Paris")


def test_tools_reach_the_template(tiny):
    """And what the template does not take is refused by name."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    (answer,) = tiny.chat(HELLO, GREEDY, tools=[tool])
    assert "get_weather" in answer.prompt
    with pytest.raises(BadRequest, match="tokenize"):
        tiny.chat(HELLO, GREEDY, tokenize=False)


def test_variables_of_the_template_are_given_as_in_vllm(tiny, tmp_path):
    """In a dict or by name; a name that the template may not get is refused there too, and so is a format."""
    write_checkpoint(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = "{{ mood }}:{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": template})
    )
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    with weft.LLM(str(tmp_path)) as llm:
        (answer,) = llm.chat(HELLO, GREEDY, chat_template_kwargs={"mood": "glad"})
        assert answer.prompt == "glad:Hello!"
        (answer,) = llm.chat(HELLO, GREEDY, chat_template_kwargs={"mood": "glad"}, mood="sad")
        assert answer.prompt == "sad:Hello!"
    with pytest.raises(BadRequest, match="tokenize"):
        tiny.chat(HELLO, GREEDY, chat_template_kwargs={"tokenize": False})
    with pytest.raises(Unsupported, match="chat_template_content_format"):
        tiny.chat(HELLO, GREEDY, chat_template_content_format="openai")


def test_pictures_need_a_model_that_reads_them(tiny):
    """The error names the part, or the argument of the processor."""
    picture = {"type": "image_pil", "image_pil": Image.new("RGB", (9, 9))}
    with pytest.raises(BadRequest, match=r"image_pil"):
        tiny.chat([{"role": "user", "content": [picture]}], GREEDY)
    with pytest.raises(BadRequest, match="mm_processor_kwargs: this model reads text only"):
        tiny.chat(HELLO, GREEDY, mm_processor_kwargs={"size": 3})


def test_pictures_in_a_conversation():
    """Pictures of Pillow and `data:` URLs are the same picture; each place is checked as a server checks it."""
    red = Image.new("RGB", (96, 96), (220, 20, 20))
    file = io.BytesIO()
    red.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    ask = {"type": "text", "text": "What colour is the background?"}
    first, second = (
        [{"role": "user", "content": [part, ask]}]
        for part in (
            {"type": "image_pil", "image_pil": red},
            {"type": "image_url", "image_url": {"url": url}},
        )
    )
    with weft.LLM("embedded:tiny-vision") as llm:
        answers = llm.chat([first, second], GREEDY, use_tqdm=False)
        assert [answer.outputs[0].text.strip() for answer in answers] == ["Red."] * 2
        with pytest.raises(BadRequest, match="image_pil must be a picture of Pillow"):
            llm.chat([{"role": "user", "content": [{"type": "image_pil"}, ask]}], GREEDY)


def test_a_model_without_a_template_does_not_chat(tmp_path):
    """The error says what to use."""
    write_checkpoint(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with weft.LLM(str(tmp_path)) as llm, pytest.raises(Unsupported, match="gener"):
        llm.chat(HELLO)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "kv_cache_bytes",
            "xMiB",
            '"xMiB" is not a size; write a number such as 4096, 32k, 32K or',
        ),
        ("max_model_len", 1.5, "must be a whole number or None, got 1.5"),
        ("max_num_batched_tokens", 1.5, "must be a whole number or one of 'auto' or None, got 1.5"),
        ("max_num_seqs", "8", "must be a whole number or None, got '8'"),
        ("enable_lora", "yes", "must be True or False, got 'yes'"),
        ("dtype", "float33", "must be one of 'auto', 'float32', 'bfloat16', 'float16', got"),
        ("allowed_media_domains", "a.b", "must be a list of strings or None, got 'a.b'"),
        ("hf_overrides", [], "must be a dict or a JSON text, got []"),
    ],
)
def test_a_value_of_another_type_is_refused(name, value, words):
    """The error has the option's name, and what it allows."""
    with pytest.raises(BadRequest) as caught:
        weft.LLM(**{name: value})
    assert caught.value.parameter == name
    assert str(caught.value).startswith(name)
    assert words in str(caught.value)


def test_sizes_are_written_as_on_the_command_line():
    """Beside plain numbers; a type of torch is its name."""
    with weft.LLM(SMALL, kv_cache_bytes="1MiB", max_model_len="1k", dtype=torch.bfloat16) as llm:
        assert llm._client.model_config.max_model_len == 1000
        assert llm._client.model_config.dtype == "bfloat16"


def test_more_prompts_than_a_server_would_queue():
    """The limits of the queue are for strangers: a list of 3,000 is answered, in its order."""
    prompts = [[3 + number % 50, 4, 5] for number in range(3000)]
    with weft.LLM(SMALL, max_model_len=16, num_gpu_blocks_override=64) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1))
    assert [output.prompt_token_ids for output in outputs] == prompts
    first = {tuple(o.prompt_token_ids): o.outputs[0].token_ids for o in outputs[:50]}
    assert all(first[tuple(o.prompt_token_ids)] == o.outputs[0].token_ids for o in outputs)


def test_the_bar_is_for_terminals(capsys):
    """Where stderr goes into a file, not a byte of it does."""
    with progress_bar(2, is_wanted=True) as advance:
        advance()
        advance()
    assert capsys.readouterr() == ("", "")


def test_arguments_of_vllm_are_followed():
    """By the table that the command line has: what changes nothing is taken, a twin followed."""
    of_vllm = {
        "tensor_parallel_size": 1,
        "trust_remote_code": True,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.5,
        "max_num_seqs": 2,
        "dtype": "half",
        "swap_space": 4,
        "disable_log_stats": True,
        "quantization": None,
    }
    with weft.LLM(SMALL, **of_vllm) as llm:
        assert len(llm.generate("a", GREEDY, use_tqdm=False)) == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tensor_parallel_size", 2, "tensor_parallel_size=2 is not supported: an engine here"),
        ("enable_mm_embeds", True, "no such setting for media"),
        ("port", 8000, "LLM has no option 'port'"),
        ("nonsense", 1, "LLM has no option 'nonsense'"),
    ],
)
def test_arguments_that_cannot_be_followed_are_refused(name: str, value: object, words: str):
    """By name, before a model is read."""
    with pytest.raises((BadRequest, ConfigError), match=words):
        weft.LLM("/no/such/model", **{name: value})


def test_defaults_of_sampling_may_be_given():
    """In place of those of the model's files."""
    with weft.LLM(override_generation_config={"temperature": 0.5}) as llm:
        params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k) == (0.5, 20)


def test_a_script_need_not_close_its_engine():
    """It ends in silence, and by itself."""
    script = (
        f"import weft\nllm = weft.LLM({SMALL!r})\nprint(len(llm.generate('a', use_tqdm=False)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("1\n", "")


def test_metrics_are_read_as_values():
    """Those that a server would show, as they stand."""
    with weft.LLM(SMALL, max_model_len=64) as llm:
        llm.generate([[5, 9], [7]], GREEDY, use_tqdm=False)
        metrics = {metric.name: metric for metric in llm.get_metrics()}
    prompt_tokens = metrics["vllm:prompt_tokens"]
    assert isinstance(prompt_tokens, Counter)
    assert prompt_tokens.value == 3
    assert isinstance(metrics["vllm:num_requests_running"], Gauge)
    waits = metrics["vllm:time_to_first_token_seconds"]
    assert isinstance(waits, Histogram)
    assert waits.count == waits.buckets["+Inf"] == 2
    assert waits.sum > 0


def test_the_tokenizer_is_the_models(tiny):
    """Its ids are those that a prompt becomes."""
    ids = tiny.get_tokenizer().encode("Hello!")
    (output,) = tiny.generate("Hello!", SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.prompt_token_ids == ids
    assert tiny.get_tokenizer().decode(ids) == "Hello!"
    assert tiny.get_tokenizer().decode(ids[0]) + tiny.get_tokenizer().decode(ids[1]) == "Hello!"
    assert tiny.get_tokenizer().vocab_size > max(ids)


def test_the_tokenizer_writes_the_prompt_of_a_conversation(tiny):
    """As scripts for vLLM have it written: the same prompt that `chat` makes."""
    tokenizer = tiny.get_tokenizer()
    messages = [{"role": "user", "content": "Hello!"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    (output,) = tiny.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.prompt == text
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert output.prompt_token_ids == ids
    shorter = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text.startswith(shorter)
    assert shorter != text
    assert "add_generation_prompt" in tokenizer.chat_template
    with pytest.raises(BadRequest, match="the model's own is used"):
        tokenizer.apply_chat_template(messages, chat_template="{{ messages }}")


@pytest.mark.slow
def test_several_engines_answer_as_one():
    """In processes of their own; `close` ends them."""
    prompts = [{"prompt_token_ids": [5 + number] * 20} for number in range(6)]
    with weft.LLM(SMALL) as alone:
        expected = [output.outputs[0].token_ids for output in alone.generate(prompts, GREEDY)]
    with weft.LLM(SMALL, data_parallel_size=2, max_num_seqs=4) as both:
        answers = [output.outputs[0].token_ids for output in both.generate(prompts, GREEDY)]
        ended = [one.value for one in both.get_metrics() if one.name == "vllm:generation_tokens"]
    assert answers == expected
    assert len(ended) == 2
    assert all(ended)


def test_what_an_engine_finds_wrong_as_it_starts_is_said(tmp_path):
    """The sentence, and not that something has stopped."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="kv-offloading-path"):
        weft.LLM(SMALL, kv_offloading_size=0.01, kv_offloading_path=str(tmp_path / "file"))


def test_how_many_engines_there_are_is_fixed_unless_it_may_change(tiny):
    """With what would let it, by name."""
    with pytest.raises(Unsupported, match="--enable-elastic-ep"):
        tiny.scale_elastic_ep(2)


@pytest.mark.slow  # engines in processes
def test_there_may_be_more_engines_and_fewer():
    """Each gives the answers that one alone gave."""
    with weft.LLM(SMALL, enable_elastic_ep=True, num_threads=2) as llm:
        prompts = [{"prompt_token_ids": [number]} for number in range(4)]
        answers = []
        for size in (1, 2, 1):
            llm.scale_elastic_ep(size, drain_timeout=PATIENCE_S)
            outputs = llm.generate(prompts, GREEDY)
            answers.append([output.outputs[0].token_ids for output in outputs])
            engines = {metric.labels.get("engine") for metric in llm.get_metrics()} - {None}
            assert engines == {str(number) for number in range(size)}
        assert answers[0] == answers[1] == answers[2]


def test_as_many_adapters_as_prompts():
    """Or one of all; another number is refused by name."""
    with (
        weft.LLM(SMALL) as llm,
        pytest.raises(BadRequest, match="lora_request must be a list of 2"),
    ):
        llm.generate(["a", "b"], GREEDY, lora_request=[None])
