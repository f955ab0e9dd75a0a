"""A checkpoint as OpenVINO's model and tokenizer; runs in OpenVINO's environment."""

import argparse
from pathlib import Path

import openvino
import transformers
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

# All matrices of layers in few bits; embedding and head are kept in eight by OpenVINO's tools.
FEW_BITS = {
    "int8": OVWeightQuantizationConfig(bits=8),
    "int4": OVWeightQuantizationConfig(bits=4, sym=True, group_size=64, ratio=1.0),
}


def main() -> None:
    """Write one directory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("weights", choices=["fp16", *FEW_BITS])
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    model = OVModelForCausalLM.from_pretrained(
        arguments.checkpoint,
        export=True,
        compile=False,
        load_in_8bit=False,
        quantization_config=FEW_BITS.get(arguments.weights),
    )
    model.save_pretrained(arguments.out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.checkpoint)
    models = convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, converted in zip(("tokenizer", "detokenizer"), models, strict=True):
        openvino.save_model(converted, arguments.out / f"openvino_{name}.xml")


if __name__ == "__main__":
    main()
