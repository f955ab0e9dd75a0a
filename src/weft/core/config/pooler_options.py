"""The JSON of `--pooler-config`, as the user gives it."""

import msgspec


class PoolerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a pooling model that override the settings in its files.

    With `enable_chunked_processing`, HTTP endpoints embed longer texts in chunks, up to `max_embed_len` tokens.
    """

    pooling_type: str | None = None
    normalize: bool | None = None
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None
