"""Parsers of requests with token ids over HTTP: vLLM's /inference/v1/generate and SGLang's /generate."""

from dataclasses import replace

import msgspec

from weft.epp.request.parsers.json_body import (
    JsonParser,
    decode_body,
    decode_member,
    is_given,
    raw_text,
    to_prompts,
)
from weft.epp.request.parsers.loose_json import ABSENT, to_flag, to_text, to_whole
from weft.epp.request.parsers.parser import Call, Dialect, Parser, malformed
from weft.epp.request.values import InferenceRequest


class VllmSampling(msgspec.Struct):
    """The only sampling parameter that routing needs."""

    max_tokens: msgspec.Raw = ABSENT


class VllmFeatures(msgspec.Struct):
    """Hashes of the media behind the placeholder tokens, by modality."""

    mm_hashes: msgspec.Raw = ABSENT


class VllmBody(msgspec.Struct):
    """The members of a vLLM request with token ids that routing needs."""

    token_ids: msgspec.Raw = ABSENT
    model: str | None = None
    sampling_params: VllmSampling | None = None
    stream: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT
    features: VllmFeatures | None = None


class SglangSampling(msgspec.Struct):
    """The only sampling parameter that routing needs."""

    max_new_tokens: msgspec.Raw = ABSENT


class SglangBody(msgspec.Struct):
    """The members of an SGLang request that routing needs."""

    text: msgspec.Raw = ABSENT
    input_ids: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT  # one object, or a list
    stream: msgspec.Raw = ABSENT
    extra_key: msgspec.Raw = ABSENT  # a text, or a list of them
    image_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT


_vllm_body = msgspec.json.Decoder(VllmBody)
_hashes = msgspec.json.Decoder(dict[str, list[str | None]])
_sglang_body = msgspec.json.Decoder(SglangBody)
_sampling: "msgspec.json.Decoder[SglangSampling | list[SglangSampling]]" = msgspec.json.Decoder(
    SglangSampling | list[SglangSampling]
)
_keys: "msgspec.json.Decoder[str | list[str]]" = msgspec.json.Decoder(str | list[str])


class VllmHttpParser(JsonParser):
    """Parses requests to vLLM's path for token ids."""

    type = "vllmhttp-parser"
    suffixes = ("inference/v1/generate",)
    dialect = Dialect.OPENAI

    def parse(self, call: Call) -> InferenceRequest:
        """Parses the token ids, which are hashed unchanged."""
        body = decode_body(_vllm_body, call.body)
        prompts = to_prompts(body.token_ids, "token_ids") if is_given(body.token_ids) else ()
        if len(prompts) != 1 or prompts[0].token_ids is None:
            raise malformed("token_ids must be a list with at least one token id")
        sampling = body.sampling_params
        raw = body.features.mm_hashes if body.features else ABSENT
        hashes = decode_member(_hashes, raw, "mm_hashes") or {}
        media = [each or "" for of_modality in hashes.values() for each in of_modality]
        return replace(
            call.to_request(self.type),
            model=body.model or "",
            prompts=prompts,
            # Placeholder tokens are equal for all media, so the hashes of the media become part of the cache key.
            cache_salt="".join([to_text(body.cache_salt), *media]),
            media=tuple(media),
            is_streaming=to_flag(body.stream),
            max_tokens=to_whole(sampling.max_tokens) if sampling else None,
        )


class SglangHttpParser(Parser):
    """Parses requests to SGLang's own path, without a path prefix."""

    type = "sglanghttp-parser"
    suffixes = ("/generate",)
    dialect = Dialect.SGLANG

    def parse(self, call: Call) -> InferenceRequest:
        """Parses one or several prompts. The body names no model."""
        body = decode_body(_sglang_body, call.body)
        if is_given(body.input_ids):
            prompts = to_prompts(body.input_ids, "input_ids")
        elif is_given(body.text):
            prompts = to_prompts(body.text, "text")
        else:
            raise malformed("the body needs text or input_ids")
        sampling = decode_member(_sampling, body.sampling_params, "sampling_params")
        if isinstance(sampling, list):
            sampling = sampling[0] if sampling else None
        keys = decode_member(_keys, body.extra_key, "extra_key")
        salt = "".join(keys or ())
        media = [
            raw_text(raw)
            for raw in (body.image_data, body.video_data, body.audio_data)
            if is_given(raw)
        ]
        return replace(
            call.to_request(self.type),
            prompts=prompts,
            cache_salt="".join([salt, *media]),
            media=tuple(media),
            is_streaming=to_flag(body.stream),
            max_tokens=to_whole(sampling.max_new_tokens) if sampling else None,
        )
