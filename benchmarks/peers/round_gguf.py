"""A GGUF file's matrices in fewer bits, as `llama-quantize` writes them; runs in llama.cpp's environment."""

import argparse
import ctypes
import os
from pathlib import Path

import llama_cpp

TYPES = {
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[arguments.type]
    params.nthread = len(os.sched_getaffinity(0))
    failed = llama_cpp.llama_model_quantize(
        bytes(arguments.file), bytes(arguments.out), ctypes.byref(params)
    )
    if failed:
        raise SystemExit(f"llama.cpp could not write {arguments.out}")


if __name__ == "__main__":
    main()
