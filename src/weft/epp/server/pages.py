"""What the metrics port shows of a picker: series, decisions, counts, health. Never a prompt."""

from collections.abc import Mapping
from typing import Final

import msgspec

from weft.epp.build import Picker
from weft.epp.server.admin import Page, Render
from weft.epp.server.server import PickerServer

_MAX_ROWS: Final = 100
PUBLIC: Final = ("/healthz", "/livez", "/readyz")


def pages(picker: Picker, server: PickerServer) -> Mapping[str, Render]:
    """The pages by path."""

    def metrics(_query: Mapping[str, str]) -> Page:
        return Page(picker.metrics_text(), "text/plain; version=0.0.4; charset=utf-8")

    def decisions(query: Mapping[str, str]) -> Page:
        request_id = query.get("request_id")
        if request_id is None:
            return _json(picker.decisions.recent(_limit(query)))
        record = picker.decisions.get(request_id)
        if record is None:
            return _json({"error": f"no decision of request {request_id} is kept"}, 404)
        return _json(record)

    def state(_query: Mapping[str, str]) -> Page:
        return _json(_state(picker, server))

    def ready(_query: Mapping[str, str]) -> Page:
        is_ready = server.health.is_ready
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    def live(_query: Mapping[str, str]) -> Page:
        return _json({"live": True})

    return {
        "/metrics": metrics,
        "/debug/decisions": decisions,
        "/debug/plugins/state": state,
        "/healthz": live,
        "/livez": live,
        "/readyz": ready,
    }


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "")
    return min(int(text), _MAX_ROWS) if text.isascii() and text.isdigit() else _MAX_ROWS


def _state(picker: Picker, server: PickerServer) -> Mapping[str, object]:
    endpoints = list(picker.pool)
    return {
        "open_requests": server.num_streams,
        "followed_requests": picker.director.num_open,
        "kept_decisions": len(picker.decisions),
        "endpoints": len(endpoints),
        "plugins": [
            {"name": plugin.name, "type": plugin.row.type_name}
            for plugin in picker.assembly.config.plugins[:_MAX_ROWS]
        ],
        "rows": [
            {
                "address": endpoint.host_port,
                "labels": dict(endpoint.labels),
                "unseen_requests": len(endpoint.unseen),
            }
            for endpoint in endpoints[:_MAX_ROWS]
        ],
    }


def _json(value: object, status: int = 200) -> Page:
    return Page(msgspec.json.encode(value) + b"\n", "application/json", status)
