"""The page of models: families, formats of weights, and what is read of GGUF files."""

from collections.abc import Callable

from tools.markdown import page, table
from weft.model.families.decoder_families import FAMILIES
from weft.model.families.encoder_families import ENCODER_FAMILIES
from weft.model.families.family import Family
from weft.model.gguf.architectures import ARCHITECTURES
from weft.model.gguf.blocks import TYPES
from weft.model.gguf.vocabulary import MODELS, SPLITTINGS
from weft.model.groups import GroupFormat
from weft.model.quantized.config import METHODS, QUANTIZATION_FILES
from weft.model.spec import NormPlacement, QkNorm

_VERIFIED = (  # what tests hold to somebody else's numbers, or to our own
    (
        "logits of every kind of decoder, with numpy",
        "transformers in float32: within 1e-4, with states of sequences 2e-3",
        "compute/test_against_transformers.py",
    ),
    (
        "those of the native core, on every set of instructions",
        "numpy: within the same; in bfloat16, transformers in float32: nearer than its own bfloat16",
        "compute/native/test_numerics.py",
    ),
    (
        "hidden states and scores of encoders",
        "transformers: within 1e-4",
        "compute/test_encoders.py",
    ),
    (
        "LoRA adapters",
        "PEFT: within 1e-4 or 2e-5 of the largest logit, with states of sequences 2e-3",
        "compute/test_against_peft.py",
    ),
    (
        "products of matrices in groups, on every set of instructions",
        "numpy: the same bits",
        "compute/native/test_grouped.py",
    ),
    (
        "values of every type of GGUF",
        "the gguf package: the same bits",
        "model/gguf/test_blocks.py",
    ),
    (
        "files of every architecture of GGUF",
        "the checkpoint they are made of: the same bits from floats; from blocks 5 % of what these mean, at most",
        "model/gguf/test_models.py",
    ),
    (
        "GGUF files of every architecture, of float32",
        "llama.cpp: the same greedy tokens, logits within 1e-5 of theirs, with GELU 5e-4",
        "llama/test_logits.py",
    ),
    (
        "of float16 and bfloat16; of every type of blocks, dense and of experts",
        "llama.cpp: the same greedy tokens, within 1e-3 and 1e-2; within 4 %, at most twice as far from what they mean",
        "llama/test_logits.py",
    ),
    (
        "tokens of GGUF files, of every way to take texts apart",
        "llama.cpp: the same",
        "llama/test_tokens.py",
    ),
    (
        "answers in company, in chunks, preempted, cached, from a second tier",
        "the same request alone: the same tokens",
        "e2e/test_bitwise.py",
    ),
)


def models() -> str:
    """Every family of checkpoints that can be read."""
    return page(
        "Models",
        (
            "A checkpoint is told by `model_type` in its config.json. Any other is refused by name, and so is "
            "a setting of these that is not computed exactly."
        ),
        table(
            ("model_type", "architecture", "on a GPU"),
            (
                (name, family.architecture, _on_a_gpu(family))
                for name, family in sorted(FAMILIES.items())
            ),
        ),
        (
            "The last column is of `--compute gpu` (docs/gpu.md), in bfloat16 or float16; `--engine vllm` is there "
            "for others."
        ),
        *_parts_of_families(),
        "Encoders embed, or classify where they were saved with a classifier:",
        ", ".join(f"`{name}`" for name in sorted(ENCODER_FAMILIES)),
        (
            "The tokenizer is a tokenizer.json, or vocab.json and merges.txt where its class is GPT2Tokenizer, "
            "as OPT and GPT-2 have them."
        ),
        *_verified(),
        *_weights(),
        *_gguf_files(),
    )


def _on_a_gpu(family: Family) -> str:
    is_dense = not (family.experts or family.has_latent) and family.recurrence == "none"
    is_plain = (
        family.norm_placement is not NormPlacement.PARALLEL
        and family.qk_norm is not QkNorm.HEAD_AFTER_ROPE
        and not family.head_bias
    )
    if "use_parallel_residual" in family.reads:
        return "without `use_parallel_residual`"
    return "yes" if is_dense and is_plain else "no"


def _parts_of_families() -> tuple[str, ...]:
    """What some have beside, or in place of, attention and one MLP."""
    return (
        (
            "Those with experts are "
            + _families(lambda family: bool(family.experts))
            + ". A token goes through a few experts of each layer, so that it is computed as fast as a small model and "
            "takes the memory of a large one: the start says how many parameters there are and how many of them a "
            "token goes through. The router is computed in float32; of equal logits the expert with the lower number "
            "is taken, where torch leaves it open. Experts may be bfloat16, float32, or rounded like any linear "
            "layer. LoRA adapters are served on attention and on what every token goes through; one on experts or "
            "their router is refused by name (docs/decisions/0033)."
        ),
        (
            "Latent attention have "
            + _families(lambda family: family.has_latent)
            + ": one vector a token is kept for all heads, and computed with as it is. What heads make of it "
            "(`kv_b_proj`) is not rounded and takes no adapters; an int8 KV cache is refused (docs/decisions/0045). "
            "A layer for multi-token prediction, which GLM-4-MoE has too, drafts where `--speculative-config` asks for "
            "it, and is passed over else (docs/decisions/0056)."
        ),
        (
            "Those with short convolutions in place of attention in some layers are "
            + _families(lambda family: family.recurrence == "convolution")
            + ". What such a layer keeps of the tokens before lies in the blocks of the KV pool, beside keys and "
            "values: prefix cache, preemption, prefill in chunks and prefill apart give the same bits as without "
            "them, and `weft plan` says how much memory it takes. Linear layers of theirs may be rounded and have "
            "LoRA adapters (docs/decisions/0042)."
        ),
        (
            "Those with gated delta nets in place of attention in most layers are "
            + _families(lambda family: family.recurrence == "delta")
            + "; of models that see, the text model. A sequence has one state in all such layers, in a slot beside the "
            "KV pool, and `--mamba-block-size` says how often one is kept for the prefix cache: `weft plan` and the "
            "start say how many slots there are. States go with their blocks to a second tier and to other engines "
            "(docs/decisions/0057). Linear layers of theirs may be rounded, but for those that make b and a, and have "
            "LoRA adapters (docs/decisions/0051). A layer for multi-token prediction drafts where "
            "`--speculative-config` asks for it, and is passed over else (docs/decisions/0056)."
        ),
        (
            "Those with Mamba-2 in place of attention in some layers are "
            + _families(lambda family: family.recurrence == "mamba")
            + ". Their states lie in such slots too; "
            "all linear layers may be rounded, that which makes time steps too. Files of `granitemoehybrid` whose "
            "layers all have attention are served as any other decoder (docs/decisions/0052)."
        ),
    )


def _verified() -> tuple[str, ...]:
    return (
        "## Verified",
        table(
            ("what", "against", "in"),
            ((what, against, f"`tests/{test}`") for what, against, test in _VERIFIED),
        ),
        "These tests make their files of random weights, with every switch of a family.",
        (
            "`make test-llama` runs those beside llama.cpp, keys and values in float32. Last on 24 November 2026, with "
            "llama-cpp-python 0.3.36 on a CPU with AVX2: all 73 passed. Logits of blocks were, of llama.cpp's, "
            "0.8 to 2.3 % off, of experts in blocks 2.1 to 2.6 %; from what the blocks mean 1.0 to 1.6 % and 1.9 to "
            "2.1 %, and llama.cpp's 0.7 to 1.9 % and 1.7 to 1.9 %. Where llama.cpp differs from the models' own code "
            "we do as that does: groups of DeepSeek V2's experts are rated by their best, yarn of gpt-oss begins "
            "between two frequencies, texts are brought to NFC for `qwen2`, and marks belong to words for `tekken` and "
            "`gpt-4o`."
        ),
    )


def _weights() -> tuple[str, ...]:
    return (
        "## Weights",
        (
            "They lie in safetensors, as bfloat16, float16 or float32. Linear layers of a decoder may be rounded, "
            "as `quantization_config` says. Numbers of 4 bits by row or in groups of 16, 32, 64 or 128, and of 8 "
            "bits in such groups, and the floats of four bits of MXFP4, are computed with as they are, inputs in "
            "int8; the head, and layers that were left out, in int8 (docs/decisions/0020). Others, and all with "
            "`--quantization none`, are read as "
            "(number - zero) * scale in float32, layer by layer, and then served as any others. With "
            "`--quantization int8`, numbers that have one scale a row and no zeros are computed with as they "
            "are. Any other form is refused by name."
        ),
        table(
            ("quant_method", "forms"),
            ((name, method.forms) for name, method in METHODS.items()),
        ),
        (
            "Where config.json does not say how weights were rounded, "
            + " and ".join(f"`{name}`" for name in QUANTIZATION_FILES)
            + " beside it do, and `compression_config` is the old name of compressed-tensors. Scales of inputs, "
            "keys and values are passed over: these keep all of their bits here."
        ),
        (
            "The files are `model.safetensors`; or the shards that `model.safetensors.index.json` names, whatever it "
            "says of their tensors; or, without an index, the shards of one series "
            "(`NAME-00001-of-00003.safetensors`, of `model` if there are several), or one file of any name. A file "
            "that git-LFS left as a pointer is refused with the command that gets it."
        ),
    )


def _gguf_files() -> tuple[str, ...]:
    return (
        "## GGUF files",
        (
            "`weft serve model.gguf`, a part of a file that was split (`-00001-of-00003.gguf`; the others beside "
            "it), or `OWNER/NAME:FILE.gguf` of the Hub, or `OWNER/NAME:Q4_K_M` where one file's name ends so. What "
            "their metadata says is read as a config.json is, and "
            "what is not known of it is refused by name. Architectures: "
            + ", ".join(f"`{name}`" for name in ARCHITECTURES)
            + "."
        ),
        (
            "A matrix in blocks is computed in its own numbers, with inputs in int8; where q, k and v, or gate and "
            "up, differ in type, they are int8 by row. With `--quantization none` blocks are widened as gguf's own "
            "dequantisation does, bit for bit. The embedding is widened to bfloat16, and the head is int8. Types: "
            + ", ".join(kind.name for kind in TYPES.values() if kind.form is None)
            + ", and"
        ),
        table(
            ("type", "computed with"),
            ((k.name, _form(k.form)) for k in TYPES.values() if k.form is not None),
        ),
        (
            "The tokenizer is made of the metadata: `tokenizer.ggml.model` "
            + " or ".join(f"`{name}`" for name in MODELS)
            + ", and of the first `tokenizer.ggml.pre` "
            + ", ".join(f"`{name}`" for name in SPLITTINGS)
            + ". An answer ends with the tokens that the file names, and with those of other files that end a turn."
        ),
    )


def _families(is_meant: Callable[[Family], bool]) -> str:
    return ", ".join(f"`{name}`" for name, one in sorted(FAMILIES.items()) if is_meant(one))


def _form(form: GroupFormat) -> str:
    offset = "a scale and a minimum" if form.offset == "minimums" else "a scale"
    return f"{form.bits} bits in groups of {form.size}, each with {offset} in {form.scales}"
