"""A LLaVA-OneVision of random numbers, 1 MB, as transformers writes one: pictures and videos, in squares of 32 x 32."""

import json
from pathlib import Path

from tests.vllm.llava import TEMPLATE, VOCAB, add_vision, name_tower, write_tokenizer

IMAGE_TOKEN_ID, VIDEO_TOKEN_ID = 259, 260
SIDE = 32
FRAME_TOKENS = 4  # 16 patches, of which four are pooled to one
_PATCH = 8
_GRID = [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]


def write_onevision(directory: Path) -> Path:
    """The checkpoint, its tokenizer and its processors."""
    add_vision()
    import torch  # there is none where these tests do not run
    import transformers

    torch.manual_seed(0)
    text = transformers.Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=1024,
        initializer_range=0.2,
    )  # fmt: skip
    vision = transformers.SiglipVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        image_size=SIDE, patch_size=_PATCH, vision_use_head=False,
    )  # fmt: skip
    config = transformers.LlavaOnevisionConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN_ID,
        video_token_index=VIDEO_TOKEN_ID, image_grid_pinpoints=_GRID,
    )  # fmt: skip
    config.eos_token_id = 256
    model = transformers.LlavaOnevisionForConditionalGeneration(config)
    with torch.no_grad():
        for weights in model.model.vision_tower.parameters():
            weights.normal_(std=0.2)  # its own beginning hardly tells one picture from another
    model.float().save_pretrained(directory)
    name_tower(directory / "model.safetensors")
    anchors = {"<image>": IMAGE_TOKEN_ID, "<video>": VIDEO_TOKEN_ID}
    write_tokenizer(
        directory, anchors, chat_template=TEMPLATE, processor_class="LlavaOnevisionProcessor"
    )
    size = {"height": SIDE, "width": SIDE}
    transformers.LlavaOnevisionImageProcessor(
        size=size, image_grid_pinpoints=_GRID
    ).save_pretrained(directory)
    # By hand: transformers, once it is imported without torchvision, refuses to make one.
    processor = {"video_processor_type": "LlavaOnevisionVideoProcessor", "size": size}
    (directory / "video_preprocessor_config.json").write_text(json.dumps(processor))
    settings = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": (SIDE // _PATCH) ** 2,
        "vision_feature_select_strategy": "full",
        "image_token": "<image>",
        "video_token": "<video>",
    }
    (directory / "processor_config.json").write_text(json.dumps(settings))
    return directory
