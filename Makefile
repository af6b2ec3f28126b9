# Two commands on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-long test-browser test-oracle dist lint types layers unit clean

demo: $(VENV)/.ready
	$(BIN)/python -m examples.demo

test: lint types layers unit

# What does not fit into `make test`; that holds a fixed sample of it.
test-long: $(VENV)/.ready
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m long

# Needs Chromium with its driver: on Debian, apt-get install chromium chromium-driver.
test-browser: $(VENV)/.ready
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { echo "there is no chromium with its driver; on Debian: apt-get install chromium chromium-driver"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -q -n 0 -m browser tests/browser

# Wheel and sdist, tried in an empty environment, with and without torch.
dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	$(BIN)/python -m build --outdir dist . >/dev/null
	$(BIN)/python tools/try_dist.py

# Live Shardy, as it comes with jax, beside ours on random programs; jax is installed apart from all else.
ORACLE ?= .venv-oracle
test-oracle: $(VENV)/.ready $(ORACLE)/.ready
	$(BIN)/python tests/oracle/live/compare.py --python $(ORACLE)/bin/python --programs 10000 --control 1000 --reshards 2000

$(ORACLE)/.ready:
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2
	touch $@

lint: $(VENV)/.ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

layers: $(VENV)/.ready
	$(BIN)/lint-imports --no-cache

unit: $(VENV)/.ready
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Shardwright needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,discover,models]'
	touch $@

clean:
	rm -rf $(VENV) $(ORACLE) dist .mypy_cache .ruff_cache .hypothesis
