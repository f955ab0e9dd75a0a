"""`mm-embeddings-cache-producer` and `-scorer`: media go where they were encoded before."""

import pytest

from tests.epp.pools import bench, make_pool, pool_of, profile, request, spec
from weft.core.errors import ConfigError
from weft.epp.config.decode import decode
from weft.epp.plugins.producers.media_cache import MediaCacheParameters

CONFIG = """\
plugins:
- {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMBPerServer: 4}}
- {type: mm-embeddings-cache-scorer}
"""


def test_media_go_where_most_of_them_went_before():
    """Two pictures of three are more than one; a fourth endpoint has none."""
    made = bench(CONFIG, pool_of(3))
    first = made.host(1, media=("a", "b"))
    second = next(host for _ in range(200) if (host := made.host(2, media=("c",))) != first)
    assert {made.host(3, media=("a", "b", "c")) for _ in range(3)} == {first}
    assert second != first


def test_what_no_longer_fits_into_a_cache_is_forgotten():
    """Two pictures fit into 4 MiB: the third takes the place of the first."""
    made = bench(CONFIG, make_pool(spec(1)))
    for name in ("a", "b", "c"):
        made.pick(request(1, media=(name,)))
    scores = []
    for name in ("c", "b", "a"):
        made.pick(request(1, media=(name,), request_id=name))
        (run,) = made.director.decisions.get(name).profiles
        scores += [score.raw for score in run.scorers[0].scores.values()]
    assert scores == [1.0, 1.0, 0.0]


def test_only_so_many_media_of_a_request_are_compared():
    """Their number is the client's, and what is compared holds others up."""
    made = bench(profile("mm-embeddings-cache-producer"), make_pool(spec(1)))
    made.pick(request(1, media=tuple(map(str, range(3000)))))
    producer = made.assembly.plugins["mm-embeddings-cache-producer"]
    assert len(producer._index) == 1024


def test_media_that_nothing_tells_apart_are_none():
    """An item without a hash could be any."""
    made = bench(CONFIG, make_pool(spec(1)))
    for request_id in ("first", "second"):
        made.pick(request(1, media=("",), request_id=request_id))
    (run,) = made.director.decisions.get("second").profiles
    assert [score.raw for score in run.scorers[0].scores.values()] == [0.0]


def test_the_encoder_is_what_holds_them():
    """Where the encode stage runs apart, the next request with the picture is encoded there again."""
    made = bench(
        """\
plugins:
- {type: always-disagg-multimodal-decider}
- {type: disagg-profile-handler, parameters: {deciders: {encode: always-disagg-multimodal-decider}}}
- {type: encode-filter}
- {type: decode-filter}
- {type: mm-embeddings-cache-producer}
- {type: mm-embeddings-cache-scorer}
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}]
- name: encode
  plugins: [{pluginRef: encode-filter}, {pluginRef: mm-embeddings-cache-scorer}]
""",
        make_pool(spec(1), *(spec(i, **{"llm-d.ai/role": "encode"}) for i in range(2, 12))),
    )
    encoders = {
        made.pick(request(1, media=("a",))).set_headers["x-encoder-hosts-ports"] for _ in range(5)
    }
    assert len(encoders) == 1


def test_the_size_has_one_name():
    """The older one is taken alone."""
    assert decode({"cacheSizeInMB": 2048}, MediaCacheParameters, "p").older_cache_size == 2048
    with pytest.raises(ConfigError, match="give one"):
        decode({"cacheSizeInMB": 2, "cacheSizeInMBPerServer": 2}, MediaCacheParameters, "p")
