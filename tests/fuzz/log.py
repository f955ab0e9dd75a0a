"""How long each parser has been fuzzed in all, kept from one run to the next."""

import datetime as dt
import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(slots=True)
class Entry:
    """All runs of one parser."""

    seconds: float = 0.0
    num_inputs: int = 0
    next_seed: int = 0
    last_day: str = ""


class Log:
    """Entries by the parser's name, in a JSON file where there is a path."""

    def __init__(self, path: Path | None, first_seed: int = 0) -> None:
        self._path = path
        self._first_seed = first_seed
        self._entries: dict[str, Entry] = {}
        if path is not None and path.exists():
            saved = json.loads(path.read_text())
            self._entries = {name: Entry(**fields) for name, fields in saved.items()}

    def next_seed(self, name: str) -> int:
        """The first seed that no run has tried."""
        return self._entry(name).next_seed

    def add(self, name: str, seconds: float, num_inputs: int) -> None:
        """Count the inputs of one seed."""
        entry = self._entry(name)
        entry.seconds += seconds
        entry.num_inputs += num_inputs
        entry.next_seed += 1
        entry.last_day = dt.datetime.now(dt.UTC).date().isoformat()

    def write(self) -> None:
        """Save the file; without a path nothing is kept."""
        if self._path is not None:
            saved = {name: asdict(entry) for name, entry in self._entries.items()}
            self._path.write_text(json.dumps(saved, indent=1) + "\n")

    def describe(self, name: str) -> str:
        """The parser's inputs and minutes of all runs."""
        entry = self._entry(name)
        return f"{entry.num_inputs} inputs in {entry.seconds / 60:.1f} minutes"

    def table(self) -> str:
        """A Markdown table, by name."""
        rows = [
            f"| {name} | {entry.seconds / 60:.1f} | {entry.num_inputs:,} | {entry.last_day} |"
            for name, entry in sorted(self._entries.items())
        ]
        head = ["| parser | minutes | inputs | last run |", "| --- | --- | --- | --- |"]
        return "\n".join([*head, *rows])

    def _entry(self, name: str) -> Entry:
        return self._entries.setdefault(name, Entry(next_seed=self._first_seed))
