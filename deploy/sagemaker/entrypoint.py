# ruff: noqa: INP001, S606, S607 - it stands alone in an image, which has weft on its PATH
"""What SageMaker starts, as `serve`: our server at port 8080, its flags from variables, as vLLM's image has them.

SM_VLLM_MAX_MODEL_LEN=4096 is --max-model-len=4096; SM_VLLM_ENABLE_PREFIX_CACHING, empty, is --enable-prefix-caching.
Without SM_VLLM_MODEL or WEFT_MODEL the model is the endpoint's own, which SageMaker unpacks in /opt/ml/model.
"""

import os
import sys

PREFIX = "SM_VLLM_"
OWN_MODEL = "/opt/ml/model"


def flag(name: str, value: str) -> str:
    """The flag of one variable."""
    spelled = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
    return f"{spelled}={value}" if value else spelled


environment = {"WEFT_PORT": "8080", **os.environ}
if f"{PREFIX}MODEL" not in environment and os.path.isdir(OWN_MODEL) and os.listdir(OWN_MODEL):
    environment.setdefault("WEFT_MODEL", OWN_MODEL)
flags = [flag(*each) for each in sorted(environment.items()) if each[0].startswith(PREFIX)]
command, *rest = sys.argv[1:] or ["serve"]
if command != "serve":
    sys.exit(f"this image takes the command serve, as SageMaker says it, not {command!r}")
os.execvpe("weft", ["weft", "serve", *flags, *rest], environment)
