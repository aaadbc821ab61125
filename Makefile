# Everything a newcomer needs: `make run` starts the gateway, `make test` runs the whole suite, `make quick` the part of
# it that starts no process. Each target creates the environment first if it is missing. PYTHON selects the interpreter (3.11
# or newer), WORKERS the number of processes that share the suite, a file at a time, BENCH arguments of the benchmarks.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
SPARK := $(VENV)/.spark
DOCS := $(VENV)/.docs

.PHONY: env install run test quick coverage check format bench bench-compare fuzz soak attacks demo cluster-demo docs pipeline lock audit clean

env: $(READY)

install: $(RUNS)

# The gateway alone: a quarter of what the tests need, so that it runs soon after the repository was cloned. The lock is
# complete, so pip need not look for dependencies (pip before 24 refuses a locked package that another one names with an
# extra as soon as a newer version is published); Python compiles what is used when it is used for the first time.
$(RUNS): requirements-run.lock requirements-build.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes \
		-r requirements-run.lock -r requirements-build.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation -e .
	touch $@

# Tests start hundreds of processes, so everything is compiled for them, on all cores (pip would use one); some packages
# have files that cannot be compiled.
$(READY): $(RUNS) requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib
	touch $@

# Spark is half a gigabyte, so it is installed only for the targets that need it.
$(SPARK): $(READY) requirements-pipeline.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-pipeline.lock
	touch $@

# The site is in build/site. Its tools have a lock of their own: a gateway serves the same pages at /help without them.
$(DOCS): $(READY) requirements-docs.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-docs.lock
	touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

run: install
	$(BIN)/trellis serve

pipeline: $(SPARK)
	$(BIN)/trellis pipeline all --source log:trellis-data

demo: install
	$(BIN)/trellis demo

# It needs the client and the server of NATS, which come with what the tests need.
cluster-demo: env
	$(BIN)/trellis cluster demo

# What was compiled is kept, whatever the environment says: tests start hundreds of processes, and pytest rewrites each
# file of tests, which takes a worker five seconds.
test quick coverage: export PYTHONDONTWRITEBYTECODE =

# With AGAIN=1 the tests that fail are run once more, alone and until one fails again: the first run names those that
# failed only because of what ran beside them. Any other end of the first run than failed tests (1) is final.
test: $(SPARK)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(if $(AGAIN),|| \
		{ [ $$? = 1 ] && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none --exitfirst; })

# Temporary files go to memory where /dev/shm exists, so that no test waits for a disk. One process more than in other
# runs works while tests wait for time to pass, which is a third of the run.
QUICK = PYTEST_DEBUG_TEMPROOT=$(wildcard /dev/shm) $(BIN)/python -m pytest --quick -n $$(($(WORKERS) + 1)) --dist worksteal \
	-o tmp_path_retention_policy=failed

quick: env
	$(QUICK)

# Besides, the tests that run parts of this process against real servers: the stream, clusters, and commands.
coverage: env
	$(QUICK) --cov --cov-report= --cov-fail-under 0
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-append --cov-report term \
		tests/gateway/jetstream tests/gateway/membership tests/gateway/commands

check: $(SPARK)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: env
	command -v npm >/dev/null && cd tests/interop/node && npm ci --ignore-scripts --no-audit --no-fund || true
	$(BIN)/python -m benchmarks $(BENCH)
	$(BIN)/python -m benchmarks.sprout_bridge

# REF is the commit to compare with, BENCH more arguments: make bench-compare REF=main BENCH="fan* --rounds 4"
bench-compare: env
	$(BIN)/python -m benchmarks.compare $(REF) $(BENCH)

fuzz: env
	TRELLIS_FUZZ=5000 $(BIN)/python -m pytest --timeout 0 tests/properties tests/adapters -k "property or any_bytes or fuzz"
	TRELLIS_FUZZ=100 $(BIN)/python -m pytest --timeout 0 tests/attacks/test_fuzz_connections.py
	$(BIN)/pip install --quiet --disable-pip-version-check 'atheris>=3,<4'
	$(BIN)/python -m tests.fuzz --seconds 60

attacks: env
	$(BIN)/python -m tests.attacks

soak: $(SPARK)
	$(PYTHON) -m venv $(VENV)/s3
	$(VENV)/s3/bin/pip install --quiet --disable-pip-version-check 'moto[server]>=5.2,<6' 'pandas>=2' 'deltalake>=1.6' 'pyarrow>=18' \
		'pyspark-client>=4.2,<5' 'msgspec>=0.19'
	PANDAS_PYTHON=$(VENV)/s3/bin/python TRELLIS_SOAK=200 $(BIN)/python -m pytest tests/faults tests/properties/test_direct_machine.py tests/properties/test_same_log.py \
		tests/properties/test_linked_gateways.py \
		tests/pipeline/test_live.py tests/pipeline/test_processes.py tests/attacks/test_fuzz_connections.py \
		tests/gateway/cluster tests/gateway/commands/test_cluster_demo.py tests/benchmarks/test_cluster.py
	MOTO_SERVER=$(VENV)/s3/bin/moto_server PANDAS_PYTHON=$(VENV)/s3/bin/python TRELLIS_SOAK=120 $(BIN)/python -m pytest -s tests/pipeline/test_object_store.py
	CONNECT_PYTHON=$(VENV)/s3/bin/python $(BIN)/python -m pytest tests/pipeline/test_connect.py
	TRELLIS_SOAK=1 $(BIN)/python -m pytest tests/test_package.py
	$(BIN)/python -m tests.faults.harness --runs 1000 --jobs $(WORKERS)
	$(BIN)/python -m tests.attacks.steady --minutes 60

COMPILE = $(BIN)/pip-compile --quiet --allow-unsafe --generate-hashes --no-emit-index-url --no-emit-trusted-host \
	--no-emit-find-links --strip-extras

# All others have the same versions as the first: what runs, what builds the wheel, and what the pipeline adds.
lock: env
	$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra otel --extra cluster --constraint requirements.lock --output-file requirements-run.lock pyproject.toml
	$(COMPILE) --only-build-deps --build-deps-for wheel --constraint requirements.lock \
		--output-file requirements-build.lock pyproject.toml
	$(COMPILE) --extra docs --constraint requirements.lock --output-file requirements-docs.lock pyproject.toml
	$(COMPILE) --extra pipeline --constraint requirements.lock --output-file requirements-pipeline.lock pyproject.toml

# pip-audit has an environment of its own, because its dependencies are not ours. A mirror of the package index may pass no
# advisories on; then ADVISORIES names a clone of https://github.com/pypa/advisory-database (tests/audit.py).
AUDIT := $(VENV)/audit

$(AUDIT)/bin/pip-audit: $(READY)
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install --quiet --disable-pip-version-check 'pip-audit>=2.9,<3'

audit: $(AUDIT)/bin/pip-audit
	$(BIN)/python -m tests.audit $(AUDIT)/bin/pip-audit $(addprefix -r ,$(wildcard requirements*.lock)) \
		$(addprefix --advisories ,$(ADVISORIES))

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage *.egg-info
