"""quantization_config: the supported methods of quantized checkpoints; all others are refused by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from weft.model.fields import Fields, read_fields
from weft.model.quantized.awq import read_awq
from weft.model.quantized.compressed import read_compressed
from weft.model.quantized.format import QuantizedFormat, need
from weft.model.quantized.fp8 import read_fp8
from weft.model.quantized.gptq import read_gptq
from weft.model.quantized.mxfp4 import read_mxfp4

# Files with the quantization if config.json lacks it, each with its method.
QUANTIZATION_FILES: Mapping[str, str] = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


@dataclass(frozen=True, slots=True)
class Method:
    """Reader for a `quant_method`, and a phrase with its supported forms."""

    read: Callable[[Fields], QuantizedFormat]
    forms: str


METHODS: Mapping[str, Method] = {
    "compressed-tensors": Method(
        read_compressed,
        "`int-quantized`: 8 bits, symmetric, a scale for each row. `pack-quantized`: 4 or 8 bits, symmetric or "
        "not, a scale for each row or group of columns, these in any order (`weight_g_idx`). `float-quantized`: FP8 "
        "(E4M3), a scale for each block, row or matrix; widened",
    ),
    "gptq": Method(
        read_gptq,
        "`gptq` and `gptq_v2`: 4 or 8 bits, with or without `desc_act` and `sym`",
    ),
    "awq": Method(read_awq, "`gemm`: 4 bits, with zero points"),
    "fp8": Method(
        read_fp8,
        "E4M3 with a scale for each block (`weight_block_size`), as DeepSeek V3 and others are published, or for each "
        "matrix; widened",
    ),
    "mxfp4": Method(read_mxfp4, "4 bits in groups of 32, as gpt-oss has its experts"),
}


def with_quantization(values: Mapping[str, object], directory: Path) -> Mapping[str, object]:
    """Returns config.json's values, with the quantization from the files in which older programs put it."""
    if values.get("quantization_config"):
        return values
    older = Fields(values, str(directory / "config.json")).object("compression_config")
    if older is not None and older.values:
        scheme = {"quant_method": "compressed-tensors", **older.values}
        return {**values, "quantization_config": scheme}
    for name, method in QUANTIZATION_FILES.items():
        if (directory / name).exists():
            fields = read_fields(directory / name)
            stored = replace(fields, values={"quant_method": method, **fields.values})
            _read(stored)  # read here, so that errors name the file
            return {**values, "quantization_config": stored.values}
    return values


def stored_method(fields: Fields) -> tuple[str, ...]:
    """Returns the checkpoint's quantization method, if Weft knows it; otherwise empty."""
    config = fields.object("quantization_config")
    found = None if config is None else config.values.get("quant_method")
    return (found,) if isinstance(found, str) and found in METHODS else ()


def read_quantization(fields: Fields) -> QuantizedFormat | None:
    """Returns the format of quantized linear layers; raises a `ConfigError` that names what is not supported."""
    config = fields.object("quantization_config")
    if config is None or not config.values:
        return None
    return _read(config)


def _read(config: Fields) -> QuantizedFormat:
    need(config, "quant_method", *METHODS)
    return METHODS[config.text("quant_method")].read(config)
