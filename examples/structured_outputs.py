"""Answers of a given form: a choice, a regular expression, a JSON schema, a grammar, and tags in free text.

weft serve
pip install openai
python examples/structured_outputs.py json regex
"""

import argparse
import json
import os
from typing import Any

from openai import OpenAI

CAR = {
    "type": "object",
    "properties": {
        "brand": {"type": "string", "maxLength": 20},
        "kind": {"$ref": "#/$defs/Kind"},
    },
    "required": ["brand", "kind"],
    "additionalProperties": False,
    "$defs": {"Kind": {"enum": ["sedan", "truck", "coupe"]}},
}
SUM = 'root ::= number " + " number\nnumber ::= [1-9] | [1-9] [0-9]\n'
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}},
    "required": ["city"],
}

# What is sent beside the question; a form that OpenAI has a field for goes there.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "choice": (
        "Is two plus two four?",
        {"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}},
    ),
    "regex": (
        "Give me an e-mail address.",
        {"extra_body": {"structured_outputs": {"regex": r"[a-z]{3,8}@[a-z]{3,8}\.(com|org)"}}},
    ),
    "json": (
        "Describe a car.",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "car", "schema": CAR, "strict": True},
            }
        },
    ),
    "grammar": (
        "Write a sum.",
        {"extra_body": {"structured_outputs": {"grammar": SUM}}},
    ),
    "structural_tag": (
        "What is the weather in Paris?",
        {
            "response_format": {
                "type": "structural_tag",
                "structures": [
                    {"begin": "<function=weather>", "schema": WEATHER, "end": "</function>"}
                ],
                "triggers": ["<function="],
            }
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("forms", nargs="*", help=f"of {', '.join(FORMS)}; all of them by default")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = client.models.list().data[0].id
    for form in args.forms or FORMS:
        question, wanted = FORMS[form]
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=100,
            temperature=0,
            **wanted,
        )
        text = answer.choices[0].message.content
        if form == "json":
            text = json.dumps(json.loads(text), indent=2)
        print(f"{form}: {text}")


if __name__ == "__main__":
    main()
