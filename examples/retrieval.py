"""Answer from documents: one server embeds them, another answers with those that are nearest to the question.

weft serve path/to/embedding/model --port 8000 --grpc-port 50051
weft serve path/to/model --port 8001 --grpc-port 50052
pip install openai numpy
python examples/retrieval.py --embeddings http://127.0.0.1:8000/v1 --chat http://127.0.0.1:8001/v1
"""

import argparse

import numpy as np
from openai import OpenAI

DOCUMENTS = [
    "The tower of the town hall is 68 metres high and was finished in 1905.",
    "The library opens at nine and closes at six; on Sundays it is closed.",
    "Bus line 4 runs every ten minutes between the station and the harbour.",
]


def embed(client: OpenAI, texts: list[str]) -> np.ndarray:
    """A row of length one for each text."""
    model = client.models.list().data[0].id
    answer = client.embeddings.create(model=model, input=texts)
    rows = np.array([one.embedding for one in answer.data])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--embeddings", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--chat", default="http://127.0.0.1:8001/v1")
    parser.add_argument("--question", default="When does the library open?")
    parser.add_argument("--top", type=int, default=1, help="how many documents the model reads")
    args = parser.parse_args()
    embedder = OpenAI(base_url=args.embeddings, api_key="none")
    similarities = embed(embedder, DOCUMENTS) @ embed(embedder, [args.question])[0]
    nearest = [DOCUMENTS[i] for i in np.argsort(-similarities)[: args.top]]
    print("read:", *nearest, sep="\n  ")
    chat = OpenAI(base_url=args.chat, api_key="none")
    prompt = "\n".join(["Answer from these documents.", *nearest, f"Question: {args.question}"])
    answer = chat.chat.completions.create(
        model=chat.models.list().data[0].id, messages=[{"role": "user", "content": prompt}]
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
