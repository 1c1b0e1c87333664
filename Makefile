# Every target does its own set-up: on a fresh machine with Python 3.11+, git and make, start with
# any of them.
PYTHON := .venv/bin/python
# Three workers more than the machine has cores, for many tests wait for processes that they started;
# five at most.
WORKERS := $(shell n=$$(nproc); echo $$((n < 2 ? n + 3 : 5)))
# Tests start some hundreds of Pythons: each would compile every module anew, where the environment
# forbids to keep what was compiled.
export PYTHONDONTWRITEBYTECODE :=
PARALLEL := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: help setup demo test torch-versions fuzz audit package lint format peers bench gpu docs

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 16

setup: ## make .venv; instant when nothing changed
	@scripts/setup

demo: setup ## a recorded grid day moves a real training job; four minutes
	@scripts/system-deps compiler
	.venv/bin/wattmesh demo $(ARGS)

test: setup ## all tests, in parallel; ARGS="tests/laws -k wheel" for some, "-n 0" one by one
	@scripts/system-deps
	$(PYTHON) -m pytest $(PARALLEL) $(ARGS)

torch-versions: setup ## some tests with older torch too, some GB each; ARGS="2.12.1"
	@scripts/torch-versions $(ARGS)

fuzz: setup ## hostile input at every door, without end; ARGS="--door readers --seed 7"
	$(PYTHON) -m benchmarks.hostile --forever $(ARGS)

audit: setup ## known weaknesses of what constraints.txt pins, where the advisories can be had
	@$(PYTHON) -m scripts.audit $(ARGS)

package: setup ## wheel and sdist in dist/, from this checkout alone
	rm -rf dist
	$(PYTHON) -m build --no-isolation --outdir dist
	@ls -l dist

lint: setup ## style, format and types
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m mypy

format: setup ## let ruff mend what it can
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

peers: setup ## the tools that benchmarks compare us with
	@scripts/peers

bench: setup peers ## every benchmark; writes docs/results.md; ARGS="search daemon" for some
	$(PYTHON) -m benchmarks.run_all $(ARGS)

gpu: setup ## what only a GPU can show, nothing of it set; writes docs/gpu.md; ARGS="--part switch"
	$(PYTHON) -m benchmarks.gpu $(ARGS)

docs: setup ## write the pages, pictures and dashboards that are made from code
	$(PYTHON) -m scripts.reference
	$(PYTHON) -m scripts.dashboards
