"""`start_offline.py` with llama.cpp: loads a file, decodes a prompt, tells when it was where, and waits."""

import ctypes
import json
import sys
import time

import llama_cpp
from engine_llama import Llama, silent

imported = time.monotonic()
llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
engine = Llama(sys.argv[1])
loaded = time.monotonic()
engine.run([json.loads(sys.argv[2])], 1)
first = time.monotonic()
print(json.dumps({"imported": imported, "loaded": loaded, "first token": first}), flush=True)
sys.stdin.read()
