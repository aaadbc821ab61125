# Everything a newcomer needs: `make run` starts the gateway, `make test` runs the whole suite.
# Both make the environment first if it is missing. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: env run test check format bench fuzz soak demo lock clean

env: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

run: env
	$(BIN)/trellis serve

demo: env
	$(BIN)/trellis demo

test: env
	$(BIN)/python -m pytest

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: env
	command -v npm >/dev/null && cd tests/interop/node && npm ci --ignore-scripts --no-audit --no-fund || true
	$(BIN)/python -m benchmarks

fuzz: env
	TRELLIS_FUZZ=1 $(BIN)/python -m pytest tests/properties tests/adapters -k "property or any_bytes or fuzz"

soak: env
	TRELLIS_SOAK=200 $(BIN)/python -m pytest tests/faults

lock: env
	$(BIN)/pip-compile --quiet --allow-unsafe --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--strip-extras --extra dev --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
