"""The reference page of models: families, weight formats, and GGUF files."""

from collections.abc import Callable

from tools.markdown import page, table
from weft.model.families.decoder_families import FAMILIES
from weft.model.families.encoder_families import ENCODER_FAMILIES
from weft.model.families.family import Family
from weft.model.gguf.architectures import ARCHITECTURES
from weft.model.gguf.blocks import TYPES
from weft.model.gguf.projectors import PROJECTORS
from weft.model.gguf.vocabulary import MODELS, SPLITTINGS
from weft.model.groups import GroupFormat
from weft.model.quantized.config import METHODS, QUANTIZATION_FILES

# What is tested, the reference it is compared with, and the file of the test.
_VERIFIED = (
    (
        "logits of every family of decoders, computed with numpy",
        "transformers in float32: within 1e-4; families with recurrent states within 2e-3",
        "compute/test_against_transformers.py",
    ),
    (
        "logits of the native core, on every instruction path",
        (
            "the numpy backend: within the same tolerances; in bfloat16, closer to transformers in float32 than "
            "transformers in bfloat16 is"
        ),
        "compute/native/test_numerics.py",
    ),
    (
        "hidden states and scores of encoders",
        "transformers: within 1e-4",
        "compute/test_encoders.py",
    ),
    (
        "LoRA adapters",
        "PEFT: within 1e-4 or 2e-5 of the largest logit; families with recurrent states within 2e-3",
        "compute/test_against_peft.py",
    ),
    (
        "matrix products with weights quantized in groups, on every instruction path",
        "numpy: bit-identical",
        "compute/native/test_grouped.py",
    ),
    (
        "dequantized values of every GGUF type",
        "the gguf package: bit-identical",
        "model/gguf/test_blocks.py",
    ),
    (
        "GGUF files of every architecture",
        (
            "the checkpoint that the file was made from: bit-identical for float types; for quantized types, within "
            "5 % of the dequantized weights"
        ),
        "model/gguf/test_models.py",
    ),
    (
        "GGUF files with gated delta nets",
        "the checkpoint that the file was made from: tensors bit-identical, logits within 4e-3",
        "model/gguf/test_head_order.py",
    ),
    (
        (
            "GGUF files in float32, of every architecture but `gemma4`, `qwen3next`, `qwen35`, `qwen35moe`, `mamba`, "
            "`mamba2` and `falcon-h1`"
        ),
        "llama.cpp: the same greedy tokens, logits within 1e-5, with GELU within 5e-4, with Mamba-2 within 1e-4",
        "llama/test_logits.py",
    ),
    (
        "GGUF files in float16, in bfloat16 and in every quantized type, dense models and mixtures of experts",
        (
            "llama.cpp: the same greedy tokens, logits within 1e-3 (float16) and 1e-2 (bfloat16); quantized types "
            "within 4 %, and at most twice as far from the dequantized weights as llama.cpp"
        ),
        "llama/test_logits.py",
    ),
    (
        "token ids of GGUF tokenizers, for every pre-tokenizer",
        "llama.cpp: the same",
        "llama/test_tokens.py",
    ),
    (
        "answers that are batched, computed in chunks, preempted, cached, or read from a second tier",
        "the same request alone: the same tokens",
        "e2e/test_bitwise.py",
    ),
)


def models() -> str:
    """Returns the page of all families of checkpoints and all weight formats."""
    return page(
        "Models",
        (
            "Weft reads `model_type` in a checkpoint's config.json. It refuses other types than those of this table by "
            "name, and also settings of config.json that it cannot compute exactly."
        ),
        table(
            ("model_type", "architecture", "on a GPU"),
            (
                (name, family.architecture, _on_a_gpu(family))
                for name, family in sorted(FAMILIES.items())
            ),
        ),
        (
            "The column *on a GPU* is about `--compute gpu` (docs/gpu.md), in bfloat16 or float16; *text* means that "
            "prompts with pictures, sounds or videos are refused there. For other families on a GPU, use "
            "`--engine vllm`."
        ),
        *_parts_of_families(),
        "Encoder models compute embeddings; with a classifier in the checkpoint, they classify:",
        ", ".join(f"`{name}`" for name in sorted(ENCODER_FAMILIES)),
        (
            "The tokenizer is read from tokenizer.json or, if its class is GPT2Tokenizer (OPT and GPT-2), from "
            "vocab.json and merges.txt."
        ),
        *_verified(),
        *_weights(),
        *_gguf_files(),
    )


def _on_a_gpu(family: Family) -> str:
    is_attention = not family.has_latent and family.recurrence == "none"
    hears = family.tower is not None and family.tower.section is None
    if not is_attention or hears or family.has_layer_sizes or family.may_be_xielu:
        return "no"
    return "yes" if family.tower is None else "text"


def _parts_of_families() -> tuple[str, ...]:
    """Returns a paragraph for each kind of layer besides attention and a dense MLP."""
    return (
        (
            "**Mixtures of experts** are "
            + _families(lambda family: bool(family.experts))
            + ". Each token is computed by a few experts of each layer, so the model is as fast as a small one and "
            "takes "
            "the memory of a large one. The server's banner shows the number of parameters, and of those active per "
            "token. The router is computed in float32. Of experts with equal logits, the one with the lower number is "
            "chosen; torch does not define which one it chooses. The weights of experts may be bfloat16, float32, or "
            "quantized like any linear layer. LoRA adapters may change attention and the layers that all tokens share. "
            "Adapters of experts or of the router are refused by name (docs/decisions/0033)."
        ),
        (
            "**Latent attention (MLA)** is in "
            + _families(lambda family: family.has_latent)
            + ". The KV cache has one latent vector per token for all heads, and attention is computed on these "
            "vectors. The projection from the vector to the heads (`kv_b_proj`) is never quantized and has no "
            "adapters. "
            "An int8 KV cache is refused (docs/decisions/0045). If the checkpoint has a layer for multi-token "
            "prediction, as GLM-4-MoE has too, that layer drafts tokens with `--speculative-config`, and is not loaded "
            "otherwise (docs/decisions/0056)."
        ),
        (
            "**Short convolutions** replace attention in some layers of "
            + _families(lambda family: family.recurrence == "convolution")
            + ". The state of such a layer is stored in the blocks of the KV pool, beside keys and values. Prefix "
            "caching, preemption, chunked prefill and disaggregated prefill therefore give bit-identical results. "
            "`weft plan` shows the memory of the states. The linear layers may be quantized and may have LoRA adapters "
            "(docs/decisions/0042)."
        ),
        (
            "**Gated delta nets** replace attention in most layers of "
            + _families(lambda family: family.recurrence == "delta")
            + ". Of vision models of these families, this is about the language model. The states of a sequence in all "
            "such layers are stored in one slot beside the KV pool. `--mamba-block-size` sets after how many tokens a "
            "snapshot of the states is stored for the prefix cache; `weft plan` and the server's banner show the "
            "number "
            "of slots. Snapshots are moved with their blocks to a second tier and to other engines "
            "(docs/decisions/0057). The linear layers may be quantized, except the projections of b and a, and "
            "may have "
            "LoRA adapters (docs/decisions/0051). A layer for multi-token prediction drafts tokens with "
            "`--speculative-config`, and is not loaded otherwise (docs/decisions/0056)."
        ),
        _mamba(),
        _own_sizes(),
        _chunks(),
    )


def _mamba() -> str:
    return (
        "**Mamba-2** replaces attention in some layers of "
        + _families(
            lambda family: family.recurrence in ("mamba", "blocks") and family.has_attention
        )
        + ", is beside it in all layers of "
        + _families(lambda family: family.recurrence == "beside")
        + ", and alone in "
        + _families(lambda family: not family.has_attention and family.recurrence == "mamba")
        + ". The states are stored in slots, as for gated delta nets. All linear layers may be quantized, "
        "including "
        "the projection of the time steps. Checkpoints of `granitemoehybrid` that have attention in all layers are "
        "served like other decoders (docs/decisions/0052). The first **Mamba** is alone in "
        + _families(lambda family: family.recurrence == "mamba1")
        + "; the two matrices between its convolution and its states are computed in float32, and are never quantized "
        "(docs/decisions/0134). Factors that a config has for the rows of matrices are "
        "multiplied into the weights when they are read, so such weights may not be quantized in the checkpoint "
        "(docs/decisions/0123)."
    )


def _chunks() -> str:
    return (
        "**Attention in chunks** is in "
        + _families(lambda family: family.windows == "chunks")
        + ": a token attends to the tokens of its chunk only, and in layers without rope to all, by queries that "
        "grow with the position. Of `llama4` the text model is served; its vision tower is not loaded. The "
        "tensors of experts must be stored as transformers stores them: all experts of a layer in one "
        "(docs/decisions/0114)."
    )


def _own_sizes() -> str:
    return (
        "**Layers with sizes of their own** are in "
        + _families(lambda family: family.has_layer_sizes)
        + ": heads of two sizes, layers that attend to keys and values of an earlier layer, and an input of each "
        "layer from a second embedding of the token. Keys and values that layers share are stored once. The "
        "matrices of these inputs are never quantized and have no adapters, and prompts cannot be embeddings. Of "
        "`gemma4` the text model is served; its towers are not loaded (docs/decisions/0103)."
    )


def _verified() -> tuple[str, ...]:
    return (
        "## Verified",
        table(
            ("what is tested", "compared with", "test"),
            ((what, against, f"`tests/{test}`") for what, against, test in _VERIFIED),
        ),
        "The tests generate checkpoints with random weights, for every combination of a family's settings.",
        (
            "`make test-llama` runs the comparison with llama.cpp, with keys and values in float32. Its last run, on "
            "28 November 2026 with llama-cpp-python 0.3.36 on a CPU with AVX-512, passed all 109 tests. For quantized "
            "dense models, Weft's logits differed from llama.cpp's by 0.8 to 2.3 %, for quantized mixtures of experts "
            "by 2.1 to "
            "2.6 %. The difference to logits of the dequantized weights was 1.0 to 1.6 % (dense) and 1.9 to 2.1 % "
            "(experts) for Weft, and 0.7 to 1.9 % and 1.7 to 1.9 % for llama.cpp."
        ),
        (
            "In some points llama.cpp differs from the models' original code, and Weft follows the original: groups of "
            "DeepSeek V2's experts are ranked by their best expert, the YaRN scaling of gpt-oss may begin between two "
            "frequencies, attention of Phi-3 has the window that its files name, texts are normalized to NFC for the "
            "pre-tokenizers `qwen2`, `qwen35` and `command-r`, and combining marks belong to words for `tekken` and "
            "`gpt-4o`."
        ),
    )


def _weights() -> tuple[str, ...]:
    return (
        "## Weights",
        (
            "Weights are read from safetensors files, in bfloat16, float16 or float32. The linear layers of a decoder "
            "may be quantized, as `quantization_config` describes. Three kinds of quantized weights are computed "
            "without conversion, with inputs in int8: 4-bit numbers by row or in groups of 16, 32, 64 or 128; 8-bit "
            "numbers in such groups; and the 4-bit floats of MXFP4. The output head and layers that are not quantized "
            "are then computed in int8 (docs/decisions/0020). Weights of other kinds, and all weights with "
            "`--quantization none`, are dequantized layer by layer to (number - zero) * scale in float32, and then "
            "served like unquantized ones. With `--quantization int8`, numbers that have one scale per row and "
            "no zeros "
            "are computed without conversion. Any other format is refused by name. `--compute gpu` keeps weights of "
            "these three kinds in their stored format too, and dequantizes them in each product, with inputs in the "
            "model's type; the head and other layers keep the model's type (docs/decisions/0101)."
        ),
        table(
            ("quant_method", "supported formats"),
            ((name, method.forms) for name, method in METHODS.items()),
        ),
        (
            "If config.json has no `quantization_config`, it is read from "
            + " or ".join(f"`{name}`" for name in QUANTIZATION_FILES)
            + " in the same directory. `compression_config` is the old key of compressed-tensors. Scales of "
            "activations, keys and values are ignored, because Weft does not quantize these with the checkpoint's "
            "scales."
        ),
        (
            "The weight files are `model.safetensors`, or the shards that `model.safetensors.index.json` names (its "
            "mapping of tensors to shards is not used). Without an index, they are the shards of one series "
            "(`NAME-00001-of-00003.safetensors`; the series `model` if there are several), or a single file of any "
            "name. A Git LFS pointer instead of a file is refused; the error has the command that downloads the file."
        ),
    )


def _gguf_files() -> tuple[str, ...]:
    return (
        "## GGUF files",
        (
            "`weft serve` accepts a file (`model.gguf`), any part of a split file "
            "(`model-00001-of-00003.gguf`, with the other parts in the same directory), a file of the Hub "
            "(`OWNER/NAME:FILE.gguf`), or the end of a file's name there (`OWNER/NAME:Q4_K_M`). The metadata of "
            "the file "
            "takes the place of config.json; unknown values are refused by name. Supported architectures: "
            + ", ".join(f"`{name}`" for name in ARCHITECTURES)
            + "."
        ),
        (
            "`--mmproj FILE` names the projector file, the vision tower of such a model "
            "([pictures](../media.md#gguf-files)). Supported projector types: "
            + ", ".join(f"`{name}`" for name in PROJECTORS)
            + "."
        ),
        (
            "A quantized matrix is computed without conversion, with inputs in int8. If q, k and v, or gate and "
            "up, have "
            "different types, these matrices are converted to int8 by row. With `--quantization none`, all "
            "matrices are "
            "dequantized, bit-identical to the gguf package. The embedding is dequantized to bfloat16, and the output "
            "head is converted to int8. Supported types: "
            + ", ".join(kind.name for kind in TYPES.values() if kind.form is None)
            + ", and"
        ),
        table(
            ("type", "computed with"),
            ((k.name, _form(k.form)) for k in TYPES.values() if k.form is not None),
        ),
        (
            "The tokenizer is read from the metadata. Supported values of `tokenizer.ggml.model`: "
            + " and ".join(f"`{name}`" for name in MODELS)
            + ". With the first of them, the supported values of `tokenizer.ggml.pre` are "
            + ", ".join(f"`{name}`" for name in SPLITTINGS)
            + ". An answer ends at the end-of-sequence tokens that the file names, and at well-known tokens that end a "
            "turn."
        ),
    )


def _families(is_meant: Callable[[Family], bool]) -> str:
    return ", ".join(f"`{name}`" for name, one in sorted(FAMILIES.items()) if is_meant(one))


def _form(form: GroupFormat) -> str:
    offset = "a scale and a minimum" if form.offset == "minimums" else "a scale"
    return f"{form.bits} bits in groups of {form.size}, each with {offset} in {form.scales}"
