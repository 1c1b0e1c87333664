# Every target does its own set-up: on a fresh machine with Python 3.11+, git and make, start with
# any of them.
PYTHON := .venv/bin/python

.PHONY: help setup demo test lint format bench docs

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

setup: ## make .venv; instant when nothing changed
	@scripts/setup

demo: setup ## a recorded grid day moves a real training job; about two minutes
	.venv/bin/wattmesh demo $(ARGS)

test: setup ## all tests; ARGS="tests/laws -k wheel" for some
	@scripts/system-deps
	$(PYTHON) -m pytest $(ARGS)

lint: setup ## style, format and types
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m mypy

format: setup ## let ruff mend what it can
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

bench: setup ## every benchmark; writes docs/results.md
	$(PYTHON) -m benchmarks.run_all

docs: setup ## write the pages and pictures that are made from code
	$(PYTHON) -m scripts.reference
