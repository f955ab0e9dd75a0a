"""What a checkpoint's files say of how it pools."""

import re

import numpy as np
import pytest

from tests.compute.encoders import make_model
from tests.compute.runners import load_runner
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from tests.model.pooling_files import change_config, write, write_modules, write_tokenizer
from weft.compute.pooler import load_pooler
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.types import PoolingKind
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.model.pooling import Scale

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small BERT, saved once."""
    directory = tmp_path_factory.mktemp("bert")
    make_model("bert", "Model").save_pretrained(directory)
    return directory


@pytest.fixture
def bert(saved, tmp_path):
    """A copy of it to change, with a tokenizer."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((saved / name).read_bytes())
    return write_tokenizer(tmp_path)


def pooling(directory, **options):
    return open_model(str(directory), **options).card.pooling


def test_an_encoder_without_word_of_it_takes_its_first_token(bert):
    """As its authors' own pooler does; normalised, as comparisons want it."""
    spec = pooling(bert)
    assert (spec.kind, spec.normalize, spec.default_length) == (PoolingKind.CLS, True, None)
    assert tuple(spec.kinds) == ("embed", "token_embed")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("cls_token", PoolingKind.CLS),
        ("mean_tokens", PoolingKind.MEAN),
        ("lasttoken", PoolingKind.LAST),
    ],
)
def test_the_modules_say_how_to_pool(bert, mode, kind):
    """The pooling's config names the rows, and a Normalize module normalises."""
    assert pooling(write_modules(bert, 48, mode)).kind is kind
    assert pooling(write_modules(bert, 48, mode, normalize=False)).normalize is False


def test_the_other_files_are_read(bert):
    """Length, case, prompt and dimensions."""
    write_modules(bert, 48)
    write(bert / "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": True})
    prompts = {"query": "the query ", "document": ""}
    write(
        bert / "config_sentence_transformers.json",
        {"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": "cosine"},
    )
    spec = pooling(change_config(bert, matryoshka_dimensions=[48, 8, 16]))
    assert (spec.default_length, spec.lowercases, spec.prompt) == (32, True, "the query ")
    assert (spec.is_matryoshka, spec.dimensions) == (True, (8, 16, 48))


def test_a_matryoshka_model_may_take_any_length(bert):
    """`is_matryoshka` alone names none."""
    spec = pooling(change_config(bert, is_matryoshka=True))
    assert (spec.is_matryoshka, spec.dimensions) == (True, ())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("modules.json", {}, "type is missing; it must be text"),
        ("modules.json", [], "the first module must be a Transformer"),
        ("modules.json", [{"type": "x.Pooling", "path": ""}], "the first module must be a Trans"),
        (
            "modules.json",
            [{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": "2_Dense"}],
            "module 'Dense' is not implemented",
        ),
        (
            "modules.json",
            [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "../x"}],
            "path is '../x'; it must be a directory beside the file",
        ),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "'max_tokens' is not impl"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "'mean_tokens and cls_token' is not implemented",
        ),
        ("1_Pooling/config.json", {"word_embedding_dimension": 7}, "word_embedding_dimension is 7"),
        ("sentence_bert_config.json", {"max_seq_length": "x"}, "max_seq_length is 'x'"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "dot"}, "it must be cosine"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "gone", "prompts": {}},
            "default_prompt_name is 'gone'",
        ),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused_by_name(bert, name, content, words):
    """The file, the key and what is allowed; never a guess."""
    write_modules(bert, 48)
    write(bert / name, content)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        open_model(str(bert))
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["BertForQuestionAnswering"]},
            "'BertForQuestionAnswering' is not a head",
        ),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True is not implemented for bert"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5; it must be a divisor"),
        ({"num_hidden_layers": 5}, "tensor encoder.layer.4.attention.self.query.weight is missing"),
        ({"num_hidden_layers": 3}, "tensor 'encoder.layer.3.attention.output.LayerNorm.bias' has"),
        ({"matryoshka_dimensions": [49]}, "matryoshka_dimensions is [49]"),
        ({"model_type": "mpnet"}, "; encoders: bert, roberta, xlm-roberta, distilbert"),
    ],
)
def test_a_config_that_is_not_this_encoder_is_refused_by_name(bert, changes, words):
    """Keys that change the maths are used or refused."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        open_model(str(change_config(bert, **changes)))


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, Scale.SIGMOID),
        ({"id2label": {"0": "a", "1": "b"}}, Scale.SOFTMAX),
        ({"problem_type": "regression"}, Scale.NONE),
        ({"problem_type": "multi_label_classification"}, Scale.SIGMOID),
        (
            {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            Scale.NONE,
        ),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            Scale.SIGMOID,
        ),
    ],
)
def test_a_classifier_says_how_its_scores_are_scaled(tmp_path, changes, scale):
    """By what its config names, else by the number of its labels."""
    labels = len(changes.get("id2label", "x"))
    make_model("bert", "ForSequenceClassification", num_labels=labels).save_pretrained(tmp_path)
    spec = pooling(change_config(write_tokenizer(tmp_path), **changes))
    assert (spec.head.scale, len(spec.head.labels)) == (scale, labels)
    assert tuple(spec.kinds) == ("classify",)


def test_what_a_decoder_is_for_follows_from_its_files(tmp_path):
    """It generates, unless sentence-transformers left word or the user says otherwise."""
    plain = write_checkpoint(tmp_path / "plain", CONFIG)
    assert pooling(plain) is None
    assert pooling(plain, runner="pooling").kind is PoolingKind.LAST
    embedder = write_modules(write_checkpoint(tmp_path / "embedder", CONFIG), 16, "lasttoken")
    assert pooling(embedder).kind is PoolingKind.LAST
    assert pooling(embedder, runner="generate") is None


def test_an_encoder_does_not_generate(bert):
    """Asked to, it is refused at start."""
    with pytest.raises(ConfigError, match="BertModel cannot generate"):
        open_model(str(bert), runner="generate")
    with pytest.raises(ConfigError, match="runner is 'chat'"):
        open_model(str(bert), runner="chat")


def test_the_numbers_of_a_decoders_classifier_are_looked_at(tmp_path):
    """By the pooler, which takes them: the native runner passes them over."""
    config = {
        **CONFIG,
        "architectures": ["LlamaForSequenceClassification"],
        "id2label": {"0": "no", "1": "yes"},
    }
    tensors = {name: t for name, t in tensors_of().items() if not name.startswith("lm_head")}
    tensors["score.weight"] = np.full((2, CONFIG["hidden_size"]), np.nan, np.float32)
    checkpoint = open_model(str(write_checkpoint(tmp_path / "m", config, tensors)))
    pooler_config = resolve(EngineOptions(), checkpoint.card, 1 << 30).pooler_config
    load_runner(checkpoint, compute="native")
    with pytest.raises(ConfigError, match=r"score\.weight holds NaN"):
        load_pooler(checkpoint, pooler_config)


def test_names_of_the_first_releases_are_known(bert):
    """gamma and beta are a norm's weight and bias, and saved counters are no weights."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    tensors = load_file(bert / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    old["embeddings.position_ids"] = np.arange(200, dtype=np.int64)[None]
    save_file(old, bert / "model.safetensors")
    weights = open_model(str(bert)).load()
    assert (weights["embed_norm"].data == tensors["embeddings.LayerNorm.weight"]).all()
