"""Ids of stored objects: random, and with the name of the store that has the object."""

import pytest

from weft.core.checks.object_ids import is_durable, is_store_name, new_id, new_store_name, store_of


@pytest.mark.parametrize("durable", [True, False])
def test_an_id_names_its_store(durable: bool):
    """Alone, and wherever a path or a query has it."""
    store = new_store_name(is_durable=durable)
    made = new_id("file", store, mark="-")
    assert is_store_name(store)
    assert is_durable(store) == durable
    places = (made, f"/v1/files/{made}", f"/v1/files/{made}/content", f"/v1/files?after={made}&x=1")
    assert {store_of(place) for place in places} == {store}
    assert new_id("file", store) != new_id("file", store)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "resp_" + "0" * 32,
        "resp_" + "0" * 48,
        "resp_m" + "0" * 43,
        "resp_m" + "0" * 45,
        "respm" + "0" * 44,
        "resp_x" + "0" * 44,
        "resp_m" + "A" * 44,
    ],
)
def test_other_ids_name_no_store(text: str):
    """Ids of other servers, and damaged ones."""
    assert store_of(text) == store_of(new_id("resp")) == ""
