# Each target sets up what it needs by itself, in .venv, and does nothing twice: the stamp files are
# older or newer than what they were made from. Needed beforehand: python 3.11+, a C++20 compiler, make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SET_UP := PYTHONPATH=src $(PYTHON) -m tools.set_up $(VENV)
NATIVE := CMakeLists.txt $(wildcard cpp/*.cpp cpp/*.h cpp/*/*.cpp cpp/*/*.h)
PROTOS := $(wildcard proto/*.proto proto/*/*.proto proto/*/*/*.proto)

# Arguments of the command behind a target: make serve ARGS="--grpc-port 6000", make test ARGS="-k cli".
ARGS ?=
# One process per core for the tests; empty for one process (make test WORKERS=). Slow ones share much within a module.
# No more processes than cores: tests in tests/attacks measure pauses of the event loop.
WORKERS ?= -n auto --dist worksteal
SLOW_WORKERS ?= -n auto --dist loadfile --no-loadscope-reorder

.PHONY: help setup wheel serve test test-slow test-repeat test-gpu test-clients test-vllm test-llama test-apiserver mutants sanitize sanitize-files check check-deploy fix bench bench-peers proto docs site release clean
help:
	@echo "make serve      start the server (ARGS=\"...\" are its arguments)"
	@echo "make test       run the tests (ARGS=\"...\" go to pytest)"
	@echo "make test-slow  run the tests that take minutes"
	@echo "make test-repeat run the changed tests and a sample of the others 20 times under load (ARGS=\"--times 5\")"
	@echo "make test-gpu   run the tests that need an NVIDIA card"
	@echo "make test-clients run real clients' packages against a server, each in an environment of its own"
	@echo "make test-vllm  run vLLM's engine behind our servers, on a CPU, in an environment of its own (3 GB)"
	@echo "make test-llama run the same GGUF files in llama.cpp and here (compiles it first: 20 minutes)"
	@echo "make test-apiserver run the picker against a real API server of Kubernetes (builds one first: 10 minutes)"
	@echo "make mutants    change the code a little and list what no test notices (ARGS=\"rpc --every 10\"); hours"
	@echo "make sanitize   run the C++ tests under the address, undefined-behaviour and thread sanitizers"
	@echo "make sanitize-files run the tests of damaged files on a core with the first two compiled in (GCC)"
	@echo "make check      format, lint, types, imports, tree, names in tests, generated documents, functions and lines of a request"
	@echo "make check-deploy check deploy/ with hadolint, nginx, promtool, kubectl, helm and others (downloads them)"
	@echo "make fix        let the formatter and the linter mend what they can"
	@echo "make bench      time steps of the engine"
	@echo "make bench-peers time whole engines beside vLLM and llama.cpp (downloads them; an hour)"
	@echo "make proto      generate Python code from proto/"
	@echo "make docs       generate docs/reference/"
	@echo "make site       the documents as a site: build/site, to be opened as files or served by anything"
	@echo "make release    an sdist and wheels in dist/release, tried in clean environments (ARGS=\"--python python3.13\")"
	@echo "make setup      everything a contributor needs, in $(VENV)"
	@echo "make wheel      compile once for many clones: dist/ holds what they take instead of compiling"
	@echo "make clean      remove what was built, and $(VENV)"

$(VENV)/core.stamp: pyproject.toml $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=...")'
	@$(SET_UP) core
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	@$(SET_UP) dev
	@touch $@

$(VENV)/site.stamp: $(VENV)/dev.stamp
	@$(SET_UP) site
	@touch $@

setup: $(VENV)/dev.stamp

# Of this platform, with all instruction paths: a clone with it in dist/ does not compile.
wheel: $(VENV)/core.stamp
	@$(SET_UP) wheel

serve: $(VENV)/core.stamp
	@exec $(BIN)/weft serve $(ARGS)

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-slow: $(VENV)/site.stamp
	$(BIN)/python -m pytest -m slow --timeout 1800 $(SLOW_WORKERS) $(ARGS)

# For a change before it lands: which of its tests fail by chance.
test-repeat: $(VENV)/dev.stamp
	nice $(BIN)/python -m tools.repeat_tests $(ARGS)

# On a machine with an NVIDIA card; without one, `make test-slow` runs the kernels in Triton's interpreter.
test-gpu: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m gpu --timeout 480 tests/compute/gpu $(ARGS)

# Each client's package goes to build/clients, once; some hundred megabytes together.
test-clients: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

# What is not an error of ours warns: vLLM's packages do, by the dozen. docs/engines.md has the last log.
test-vllm: $(VENV)/dev.stamp
	$(BIN)/python -m tests.vllm.environment
	PYTHONPATH=src build/peers/vllm-tests/bin/python -m pytest -m vllm -W default --timeout 3600 tests/vllm $(ARGS)

# It is compiled once, into build/peers. docs/reference/models.md has what is held to it.
test-llama: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m llama --timeout 3600 tests/llama $(ARGS)

# It and etcd go to ~/.cache/weft, once: tools/build_apiserver.py says of what they are made.
test-apiserver: $(VENV)/dev.stamp
	$(BIN)/python -m tools.build_apiserver
	$(BIN)/python -m pytest -m apiserver tests/apiserver $(ARGS)

# In the background of other work, of which it takes hours: what survives is judged in docs/mutants.md.
mutants: $(VENV)/dev.stamp
	nice $(BIN)/python tools/mutants.py $(ARGS)

# With one kind of sanitizers: each has a directory of its own, since they cannot be compiled in together.
build_sanitized = $(BIN)/cmake -S . -B build/sanitized/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_SANITIZE=$(1) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
  -Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)" && \
  $(BIN)/cmake --build build/sanitized/$(1) --target $(2)

sanitize: $(VENV)/dev.stamp
	for kind in address,undefined thread; do \
	  $(call build_sanitized,$$kind,fuzz) && build/sanitized/$$kind/fuzz $(ARGS) || exit 1; \
	done

# The library is loaded first, since python was not built with it; too large an allocation is a MemoryError, as ever.
DAMAGED := tests/model/test_damage.py tests/model/gguf/test_damage*.py tests/model/quantized/test_damage.py
sanitize-files: $(VENV)/dev.stamp
	kind=address,undefined && $(call build_sanitized,$$kind,_core)
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
	  $(BIN)/python -m pytest -p tests.sanitized --capture=sys -m "slow or not slow" $(or $(ARGS),$(DAMAGED))

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check --output-format concise .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_tree.py
	$(BIN)/python tools/check_names.py
	$(BIN)/python -m tools.make_reference --check
	$(BIN)/python tools/trace_request.py --check

# The tools go to ~/.cache/weft-deploy, once.
check-deploy: $(VENV)/dev.stamp
	$(BIN)/python -m tools.check_deploy

fix: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/core.stamp
	$(BIN)/python benchmarks/step.py $(ARGS)

bench-peers: $(VENV)/core.stamp
	$(BIN)/python benchmarks/peers/compare.py $(ARGS)
	$(BIN)/python benchmarks/peers/served.py

proto: $(VENV)/dev.stamp
	$(BIN)/python proto/generate.py

docs: $(VENV)/dev.stamp
	$(BIN)/python -m tools.make_reference

site: docs $(VENV)/site.stamp
	$(BIN)/python -m tools.make_site

# The wheels are compiled in environments of their own, so this one needs no compiled core.
release:
	@$(SET_UP) release
	$(BIN)/python -m tools.release $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '__pycache__' -prune -exec rm -rf {} +
	find src -name '*.so' -delete
