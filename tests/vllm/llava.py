"""A LLaVA of random numbers, 2 MB, as transformers writes one: pictures of 32 x 32, in 16 patches."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from safetensors.numpy import load_file, save_file

from tests.vllm.environment import VISION
from weft.model.embedded.byte_tokenizer import tokenizer_files

IMAGE_TOKEN, IMAGE_TOKEN_ID = "<image>", 259
NUM_PATCHES = 16
VOCAB = 400
# As models' own: what is no text becomes an anchor.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'video' %}<video>"
    "{% elif part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def add_vision() -> None:
    """Let this process find torchvision."""
    if str(VISION) not in sys.path:
        sys.path.append(str(VISION))


def vision_path() -> str:
    """PYTHONPATH of a process that is to find torchvision."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(VISION)])


def write_llava(directory: Path) -> Path:
    """The checkpoint, its tokenizer and its processor."""
    add_vision()
    import torch  # there is none where these tests do not run
    import transformers

    torch.manual_seed(0)
    text = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=1024,
        initializer_range=0.2,
    )  # fmt: skip
    vision = transformers.CLIPVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        image_size=32, patch_size=8, projection_dim=64, initializer_range=0.2,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN_ID,
        vision_feature_select_strategy="default", vision_feature_layer=-1,
    )  # fmt: skip
    config.eos_token_id = 256
    transformers.LlavaForConditionalGeneration(config).float().save_pretrained(directory)
    name_tower(directory / "model.safetensors")
    write_tokenizer(
        directory,
        {IMAGE_TOKEN: IMAGE_TOKEN_ID},
        chat_template=TEMPLATE,
        image_token=IMAGE_TOKEN,
        processor_class="LlavaProcessor",
    )
    transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(directory)
    (directory / "processor_config.json").write_text(
        json.dumps(
            {
                "processor_class": "LlavaProcessor",
                "patch_size": 8,
                "vision_feature_select_strategy": "default",
                "image_token": IMAGE_TOKEN,
                "num_additional_image_tokens": 1,
            }
        )
    )
    return directory


def name_tower(path: Path) -> None:
    """vLLM wants the name that the tower's weights have in the checkpoints that there are."""
    tensors = load_file(path)
    old, new = "vision_tower.", "vision_tower.vision_model."
    save_file(
        {name if new in name else name.replace(old, new): value for name, value in tensors.items()},
        path,
        metadata={"format": "pt"},
    )


def write_tokenizer(directory: Path, anchors: Mapping[str, int], **settings: str) -> None:
    """One of bytes, with tokens of their own for these texts; `settings` are its configuration's."""
    files = {
        name: json.loads(data) for name, data in tokenizer_files(VOCAB, "<|endoftext|>").items()
    }
    tokenizer = files["tokenizer.json"]
    vocab = tokenizer["model"]["vocab"]
    words = {number: word for word, number in vocab.items()}
    for text, number in anchors.items():
        del vocab[words[number]]
        vocab[text] = number
        tokenizer["added_tokens"].append(
            {**tokenizer["added_tokens"][0], "id": number, "content": text}
        )
    files["tokenizer_config.json"] |= settings
    for name, document in files.items():
        (directory / name).write_text(json.dumps(document))
