"""A plugin of `make sanitize-files`: tests run on a core with sanitizers, which lies apart."""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

NAME = "weft.compute.native._core"
DIRECTORY = Path(__file__).parent.parent / "build/sanitized/address,undefined"


class Finder:
    """Finds that module before the one that is beside the sources."""

    @staticmethod
    def find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        (file,) = DIRECTORY.glob("_core.*.so")
        return spec_from_file_location(name, file)


sys.meta_path.insert(0, Finder)
# It is loaded, and takes terabytes of addresses: processes that tests start limit theirs.
os.environ.pop("LD_PRELOAD", None)


def pytest_report_header() -> str:
    """What is tested, and on which paths of this CPU."""
    from weft.compute.native import _core, usable_paths

    assert Path(_core.__file__).parent == DIRECTORY
    return f"core: {_core.__file__}, paths {', '.join(usable_paths())}"
