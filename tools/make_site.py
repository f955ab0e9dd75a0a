"""The documents as a site in build/site, of their files as they are: `make site`. A link that leads nowhere ends it.

The pages' source is a copy of the README, of docs/ and of every file that those link to, in the tree's own order: links
lead to the same places in the repository and on the site.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "tools" / "site" / "zensical.toml"
THEME = ROOT / "tools" / "site" / "theme"
HOME = "README.md"
# A page of docs/ that no line names is a how-to.
TUTORIAL = ("docs/first-minute.md",)
REFERENCE = (
    "docs/reference/README.md",
    "docs/reference/*.md",
    "docs/glossary.md",
    "examples/README.md",
)
EXPLANATION = (
    "docs/architecture.md",
    "docs/memory.md",
    "docs/failures.md",
    "docs/decisions/README.md",
    "docs/decisions/*.md",
)
PROJECT = (
    "CONTRIBUTING.md",
    "docs/style.md",
    "docs/extending.md",
    "docs/fuzzing.md",
    "docs/mutants.md",
    "docs/sanitizers.md",
    "CHANGELOG.md",
    "docs/changes/*.md",
)
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# What a page loads by itself, by element: the attribute that says from where.
_LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
}


def pages(root: Path) -> dict[str, list[str]]:
    """The pages under each heading of the navigation, each once."""
    named = {
        "Tutorial": _matching(root, TUTORIAL),
        "How to": [],
        "Reference": _matching(root, REFERENCE),
        "Explanation": _matching(root, EXPLANATION),
        "Project": _matching(root, PROJECT),
    }
    others = set(_matching(root, ("docs/*.md",))).difference(*named.values())
    named["How to"] = sorted(others, key=lambda page: title_of(root / page))
    return {"Start": [HOME], **named}


def _matching(root: Path, patterns: Iterable[str]) -> list[str]:
    """The files that the patterns name, in their order."""
    found = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return list(dict.fromkeys(path.relative_to(root).as_posix() for path in found))


def title_of(page: Path) -> str:
    """Its first heading."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.stem


def files_of_site(root: Path) -> set[str]:
    """Every page, and every file that a page links to."""
    files = {page for group in pages(root).values() for page in group}
    files |= {p.relative_to(root).as_posix() for p in (root / "docs").rglob("*") if p.is_file()}
    fresh = set(files)
    while fresh:
        linked = {target for page in fresh for target in links_of(root, page)}
        fresh = {target for target in linked if (root / target).is_file()} - files
        files |= fresh
    return files


def links_of(root: Path, page: str) -> Iterator[str]:
    """The paths, from the root, that a page links to."""
    if not page.endswith(".md"):
        return
    text = _CODE.sub("", (root / page).read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        path = (root / page).parent / target
        if path.resolve().is_relative_to(root):
            yield path.resolve().relative_to(root).as_posix()


def settings(root: Path) -> str:
    """The settings with the navigation: the only page of a heading stands in its place."""
    lines = []
    for heading, group in pages(root).items():
        if not group:
            continue
        entries = [
            f"{{ {json.dumps(title_of(root / page))} = {json.dumps(page)} }}" for page in group
        ]
        below = json.dumps(group[0]) if heading == "Start" else f"[{', '.join(entries)}]"
        lines.append(f"  {{ {json.dumps(heading)} = {below} }},")
    navigation = "\n".join(["nav = [", *lines, "]", ""])
    text = SETTINGS.read_text(encoding="utf-8")
    theme = f"[project.theme]\ncustom_dir = {json.dumps(str(THEME))}\n"
    return text.replace("[project.theme]\n", f"{navigation}\n{theme}", 1)


class _Page(HTMLParser):
    """What a page of the site has to link to, links to, and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in an element."""
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if source := values.get(_LOADED.get(tag, "")):
            self.loaded.append(source)


def faults(site: Path) -> Iterator[str]:
    """Links that lead nowhere, and what comes from elsewhere."""
    parsed = {
        path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))
    }
    for path, page in parsed.items():
        name = path.relative_to(site)
        for url in page.loaded:
            if urlsplit(url).netloc:
                yield f"{name}: loads {url} from elsewhere"
        if name.name != "404.html":  # its links are from the root of a server
            yield from (f"{name}: {fault}" for fault in _broken(path, parsed))
    for sheet in sorted(site.rglob("*.css")):
        for url in re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", sheet.read_text("utf-8")):
            yield f"{sheet.relative_to(site)}: loads {url} from elsewhere"


def _broken(path: Path, parsed: dict[Path, _Page]) -> Iterator[str]:
    """The addresses within the site that a page has, and that are not there."""
    for url in sorted({*parsed[path].links, *parsed[path].loaded}):
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        place = unquote(parts.fragment)
        if not target.is_file():
            yield f"{url} leads nowhere"
        elif place and target in parsed and place not in parsed[target].ids:
            yield f"{url} has no such place"


def build(root: Path, place: Path) -> list[str]:
    """Make the site in `place`/site; what is wrong with it."""
    source = place / "site-pages"
    for directory in (source, place / "site"):
        shutil.rmtree(directory, ignore_errors=True)
    for file in files_of_site(root):
        target = source / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file, target)
    config = place / "site.toml"
    config.write_text(settings(root), encoding="utf-8")
    program = Path(sys.executable).parent / "zensical"
    command = [program, "build", "--strict", "--clean", "--config-file", config]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if result.returncode:
        return [_COLOUR.sub("", result.stdout + result.stderr).partition("Traceback")[0].strip()]
    return list(faults(place / "site"))


def main() -> int:
    """Build it from this tree, and say where it is."""
    found = build(ROOT, ROOT / "build")
    print("\n".join(found) if found else "site: build/site/index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
