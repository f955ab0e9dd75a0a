"""The shipped model `embedded:tiny-vision`: small, read by transformers alike, and right about colours."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import weft
from weft.core.values.types import SamplingParams

FOLDER = Path(__file__).resolve().parents[2] / "src/weft/model/embedded/tiny-vision"
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
COLOURS = {"red": (214, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 215)}


@pytest.fixture(scope="module")
def llm():
    """The model in Weft's engine."""
    with weft.LLM("embedded:tiny-vision", max_model_len=256, dtype="float32") as made:
        yield made


def plain(colour: str) -> Image.Image:
    """A picture of one colour, larger than the model's own and no square."""
    return Image.new("RGB", (120, 90), COLOURS[colour])


def prompt(question: str, *pictures: Image.Image) -> dict:
    """A first question, as the chat template writes it."""
    text = f"<|im_start|>user\n{'<image>' * len(pictures)}{question}<|im_end|>\n<|im_start|>assistant\n"
    return {"prompt": text, "multi_modal_data": {"image": list(pictures)}}


def test_the_folder_is_small():
    """The package ships it, so everything together stays within 2 MB."""
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 2_000_000


@pytest.mark.parametrize(
    "question", ["What colour is the background?", "What is the background color?"]
)
@pytest.mark.parametrize("colour", COLOURS)
def test_it_names_colours(llm, question: str, colour: str):
    """Examples, pages and tests of media may rely on this."""
    [output] = llm.generate([prompt(question, plain(colour))], GREEDY, use_tqdm=False)
    assert output.outputs[0].text == f"{colour.capitalize()}."


@pytest.mark.filterwarnings("ignore")
def test_transformers_answers_alike(llm):
    """An independent reader of the folder gives the same greedy tokens, one picture or two."""
    model = AutoModelForImageTextToText.from_pretrained(FOLDER, dtype=torch.float32)
    processor = SmolVLMImageProcessorPil.from_pretrained(FOLDER)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for pictures in ([plain("red")], [plain("blue"), plain("green")]):
        [output] = llm.generate([prompt("What do you see?", *pictures)], GREEDY, use_tqdm=False)
        made = processor([pictures], return_tensors="pt")
        ids = list(output.prompt_token_ids)
        for _ in output.outputs[0].token_ids:
            with torch.no_grad():
                logits = model(
                    input_ids=torch.tensor([ids]),
                    pixel_values=made["pixel_values"],
                    pixel_attention_mask=made["pixel_attention_mask"],
                ).logits[0, -1]
            ids.append(int(np.argmax(logits.numpy())))
        new = ids[len(output.prompt_token_ids) :]
        assert new == output.outputs[0].token_ids, tokenizer.decode(new)
