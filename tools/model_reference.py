"""The page of models: families, formats of weights, and what is read of GGUF files."""

from tools.picker_reference import NOTE
from weft.model.encoder_families import ENCODER_FAMILIES
from weft.model.families import FAMILIES
from weft.model.gguf.architectures import ARCHITECTURES
from weft.model.gguf.blocks import TYPES
from weft.model.gguf.vocabulary import MODELS, SPLITTINGS
from weft.model.groups import GroupFormat
from weft.model.quantized.config import METHODS


def models() -> str:
    """Every family of checkpoints that can be read."""
    lines = [
        NOTE,
        "",
        "# Models",
        "",
        (
            "A checkpoint is told by `model_type` in its config.json. Any other is refused by name, and so is "
            "a setting of these that is not computed exactly."
        ),
        "",
        "| model_type | architecture |",
        "| --- | --- |",
        *(f"| {name} | {family.architecture} |" for name, family in sorted(FAMILIES.items())),
        "",
        (
            "Those with experts are "
            + ", ".join(f"`{name}`" for name, family in sorted(FAMILIES.items()) if family.experts)
            + ". A token goes through a few experts of each layer, so that it is computed as fast as a small model and "
            "takes the memory of a large one: the start says how many parameters there are and how many of them a "
            "token goes through. The router is computed in float32; of equal logits the expert with the lower number "
            "is taken, where torch leaves it open. Experts may be bfloat16, float32, or rounded like any linear "
            "layer. LoRA adapters are served on attention and on what every token goes through; one on experts or "
            "their router is refused by name (docs/decisions/0033)."
        ),
        "",
        (
            "Latent attention have "
            + ", ".join(
                f"`{name}`" for name, family in sorted(FAMILIES.items()) if family.has_latent
            )
            + ": one vector a token is kept for all heads, and computed with as it is. What heads make of it "
            "(`kv_b_proj`) is not rounded and takes no adapters; an int8 KV cache is refused (docs/decisions/0045). "
            "A layer for multi-token prediction, which GLM-4-MoE has too, drafts where `--speculative-config` asks for "
            "it, and is passed over else (docs/decisions/0056)."
        ),
        "",
        (
            "Those with short convolutions in place of attention in some layers are "
            + ", ".join(
                f"`{n}`" for n, family in sorted(FAMILIES.items()) if family.has_convolutions
            )
            + ". What such a layer keeps of the tokens before lies in the blocks of the KV pool, beside keys and "
            "values: prefix cache, preemption, prefill in chunks and prefill apart give the same bits as without "
            "them, and `weft plan` says how much memory it takes. Linear layers of theirs may be rounded and have "
            "LoRA adapters (docs/decisions/0042)."
        ),
        "",
        (
            "Those with gated delta nets in place of attention in most layers are "
            + ", ".join(
                f"`{n}`" for n, family in sorted(FAMILIES.items()) if family.delta != "none"
            )
            + "; of models that see, the text model. A sequence has one state in all such layers, in a slot beside the "
            "KV pool, and `--mamba-block-size` says how often one is kept for the prefix cache: `weft plan` and the "
            "start say how many slots there are. `--kv-offloading-size` and "
            "`--kv-transfer-config` are refused. They are computed with numpy (`--compute reference`), slowly, and "
            "`--compute native` is refused. Linear layers of theirs may be rounded, but for those that make b and a, "
            "and have LoRA adapters (docs/decisions/0051). A layer for multi-token prediction drafts where "
            "`--speculative-config` asks for it, and is passed over else (docs/decisions/0056)."
        ),
        "",
        (
            "Those with Mamba-2 in place of attention in some layers are "
            + ", ".join(f"`{n}`" for n, family in sorted(FAMILIES.items()) if family.has_mamba)
            + ". Their states lie in such slots, and the same flags are refused; the native core computes them, and "
            "all linear layers may be rounded, that which makes time steps too. Files of `granitemoehybrid` whose "
            "layers all have attention are served as any other decoder (docs/decisions/0052)."
        ),
        "",
        "Encoders embed, or classify where they were saved with a classifier:",
        "",
        ", ".join(f"`{name}`" for name in sorted(ENCODER_FAMILIES)),
        "",
        (
            "The tokenizer is a tokenizer.json, or vocab.json and merges.txt where its class is GPT2Tokenizer, "
            "as OPT and GPT-2 have them."
        ),
        "",
        "## Weights",
        "",
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
        "",
        "| quant_method | forms |",
        "| --- | --- |",
        *(f"| {name} | {method.forms} |" for name, method in METHODS.items()),
        "",
        "## GGUF files",
        "",
        (
            "`weft serve model.gguf`, a part of a file that was split (`-00001-of-00003.gguf`; the others beside "
            "it), or `OWNER/NAME:FILE.gguf` of the Hub, or `OWNER/NAME:Q4_K_M` where one file's name ends so. What "
            "their metadata says is read as a config.json is, and "
            "what is not known of it is refused by name. Architectures: "
            + ", ".join(f"`{name}`" for name in ARCHITECTURES)
            + "."
        ),
        "",
        (
            "A matrix in blocks is computed in its own numbers, with inputs in int8; where q, k and v, or gate and "
            "up, differ in type, they are int8 by row. With `--quantization none` blocks are widened as gguf's own "
            "dequantisation does, bit for bit. The embedding is widened to bfloat16, and the head is int8. Types: "
            + ", ".join(kind.name for kind in TYPES.values() if kind.form is None)
            + ", and"
        ),
        "",
        "| type | computed with |",
        "| --- | --- |",
        *(f"| {k.name} | {_form(k.form)} |" for k in TYPES.values() if k.form is not None),
        "",
        (
            "The tokenizer is made of the metadata: `tokenizer.ggml.model` "
            + " or ".join(f"`{name}`" for name in MODELS)
            + ", and of the first `tokenizer.ggml.pre` "
            + ", ".join(f"`{name}`" for name in SPLITTINGS)
            + ". An answer ends with the tokens that the file names, and with those of other files that end a turn."
        ),
    ]
    return "\n".join(lines) + "\n"


def _form(form: GroupFormat) -> str:
    offset = "a scale and a minimum" if form.offset == "minimums" else "a scale"
    return f"{form.bits} bits in groups of {form.size}, each with {offset} in {form.scales}"
