# `make demo` needs python3 (3.11 or newer) and nothing else. `make test` needs a C compiler and Chromium too, and installs both where it may.
# Variables: PYTHON=/path/to/python3  VENV=.venv  PORT=8470  PYTEST="-k something"
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV ?= .venv
# three on two cores: some of its time a test waits; four are hardly quicker
WORKERS ?= 3
python = $(VENV)/bin/python
up = $(python) manage.py up $(if $(PORT),--port $(PORT))
# byte code is kept whatever the environment says: without, each worker and each process that a test starts compiles everything anew
pytest = env -u PYTHONDONTWRITEBYTECODE $(python) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --leftovers
# the practice box has a state folder of its own, so that nothing of it mixes with real nodes
practice = ROUNDHOUSE_STATE="$${ROUNDHOUSE_STATE:-$(CURDIR)/var/practice}"

.PHONY: help demo demo-once up test test-full lint lock clean environment environment-tests

help:
	@echo 'make demo       the practice box in your browser: no GPU, no root needed. Ctrl-C ends it'
	@echo 'make demo-once  the same, without staying: one redeploy, its report, exit code 0 if all went well'
	@echo 'make up         for real use: the console and the agent of this machine'
	@echo 'make test       tests (under ten minutes); make test-full adds the long ones'
	@echo 'make environment  only .venv, for python -m ops without a console'
	@echo 'make lint       ruff and mypy; make lock compiles the requirements anew; make clean removes what was made'

demo: environment
	@$(practice) exec $(up) --practice

demo-once: environment
	@$(practice) exec $(up) --practice --once

up: environment
	@exec $(up)

test: environment-tests
	$(pytest) -m "not slow" $(PYTEST)

test-full: environment-tests
	$(pytest) $(PYTEST)

lint: environment-tests
	$(python) -m ruff check .
	$(python) -m mypy ops dashboard

lock: environment
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 requirements.in -o requirements.txt
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 -c requirements.txt requirements-dev.in -o requirements-dev.txt
	$(VENV)/bin/uv pip compile --quiet --generate-hashes --python-version 3.12 --python-platform x86_64-manylinux_2_28 requirements-serving.in -o requirements-serving.txt

# state (var/) goes only when nobody uses it: `manage.py up` holds a lock on it
clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache test-results
	find . -name __pycache__ -not -path './var/*' -prune -exec rm -rf {} +

environment:
	@python=$$(PYTHON="$(PYTHON)" .ci/find-python) && "$$python" .ci/bootstrap.py --venv "$(VENV)"

environment-tests:
	@python=$$(PYTHON="$(PYTHON)" .ci/find-python) && "$$python" .ci/bootstrap.py --venv "$(VENV)" --tests
