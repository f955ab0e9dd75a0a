"""deploy/perses/weft.json: what deploy/grafana/weft.json shows, as Perses has it."""

import json
import re
from pathlib import Path
from typing import Any, Final

from tools.compact_json import compact_json

DEPLOY: Final = Path(__file__).resolve().parent.parent / "deploy"
GRAFANA: Final = DEPLOY / "grafana" / "weft.json"
PERSES: Final = DEPLOY / "perses" / "weft.json"

_UNITS: Final[dict[str, dict[str, Any]]] = {
    "s": {"unit": "seconds"},
    "percentunit": {"unit": "percent-decimal"},
    "short": {"unit": "decimal", "shortValues": True},
}
# Heat maps of Perses are of native histograms, which ours are not: of those panels it shows quantiles.
_QUANTILES: Final = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}


def perses_dashboard() -> str:
    """The file's text."""
    grafana = json.loads(GRAFANA.read_text(encoding="utf-8"))
    panels = {f"panel{one['id']}": one for one in grafana["panels"]}
    made = {
        "kind": "Dashboard",
        "metadata": {"name": grafana["uid"], "project": grafana["uid"]},
        "spec": {
            "display": {"name": grafana["title"]},
            "duration": grafana["time"]["from"].removeprefix("now-"),
            "refreshInterval": grafana["refresh"],
            "variables": [
                _variable(one) for one in grafana["templating"]["list"] if one["type"] == "query"
            ],
            "panels": {name: _panel(one) for name, one in panels.items()},
            "layouts": [
                {
                    "kind": "Grid",
                    "spec": {"items": [_item(name, one) for name, one in panels.items()]},
                }
            ],
        },
    }
    return compact_json(made) + "\n"


def _variable(one: dict[str, Any]) -> dict[str, Any]:
    found = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", one["query"]["query"])
    assert found is not None, "a variable is the values of a label"
    series, label = found.groups()
    return {
        "kind": "ListVariable",
        "spec": {
            "name": one["name"],
            "display": {"name": one["label"]},
            "allowMultiple": one["multi"],
            "allowAllValue": one["includeAll"],
            "customAllValue": one["allValue"],
            "defaultValue": [one["current"]["value"]] if one["multi"] else one["current"]["value"],
            "plugin": {
                "kind": "PrometheusLabelValuesVariable",
                "spec": {"labelName": label, "matchers": [series]},
            },
        },
    }


def _panel(one: dict[str, Any]) -> dict[str, Any]:
    unit = one["fieldConfig"]["defaults"].get("unit") or one["options"]["yAxis"]["unit"]
    return {
        "kind": "Panel",
        "spec": {
            "display": {"name": one["title"]},
            "plugin": {
                "kind": "TimeSeriesChart",
                "spec": {
                    "legend": {"mode": "list", "position": "bottom"},
                    "yAxis": {"format": _UNITS[unit], "min": 0},
                },
            },
            "queries": [_query(*each) for each in _queries(one)],
        },
    }


def _queries(one: dict[str, Any]) -> list[tuple[str, str]]:
    """Each query and the name of its series."""
    targets = [(target["expr"], target["legendFormat"]) for target in one["targets"]]
    if one["type"] != "heatmap":
        return targets
    ((buckets, _),) = targets
    rates = buckets.replace("increase(", "rate(")
    return [(f"histogram_quantile({q}, {rates})", name) for name, q in _QUANTILES.items()]


def _query(text: str, name: str) -> dict[str, Any]:
    plugin = {
        "kind": "PrometheusTimeSeriesQuery",
        "spec": {"query": text, "seriesNameFormat": name},
    }
    return {"kind": "TimeSeriesQuery", "spec": {"plugin": plugin}}


def _item(name: str, one: dict[str, Any]) -> dict[str, Any]:
    place = one["gridPos"]
    return {
        "x": place["x"],
        "y": place["y"],
        "width": place["w"],
        "height": place["h"],
        "content": {"$ref": f"#/spec/panels/{name}"},
    }
