# The two commands of the README are `make demo` and `make test`; CI runs the same targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and demo start many processes: where Python was told to keep nothing that it has compiled, each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install help demo check hook test nightly coverage lint docs site native bench bench-console bench-journal bench-live chaos clean

install: $(STAMP) ## what is needed, into .venv; the other targets do it by themselves

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F '|' '{printf "%-25s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# make demo ARGS="--seconds 20"
demo: install ## a storm of events becomes a trickle of records, then a check that nothing was lost
	@$(BIN)/streams-app demo $(ARGS)

# make test ARGS="-k marks"; most tests wait for processes and servers, so six at once suit two cores. They take 6 GB; JOBS=4 takes 4.
# Left out: tests marked `long` (outages that must last, wrong clocks, rarer commands, OpenSearch, nearly all pages in a browser, workers
# with a schema registry) and the simulation in tests/simulation. make test SELECTION= runs them, too, and CI those that a change reaches.
# make test ARGS="-m long" runs the marked ones alone, ARGS="-m ''" all: of two -m the last one counts.
JOBS := 6
SELECTION := --ignore=tests/simulation -m "not long"
test: install ## sets up and passes the tests
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(SELECTION) $(ARGS)

# make check BASE=origin/main, for a change of several commits
BASE := HEAD
# make check ARGS=--maxfail=0, to see all that fails
check: lint ## within a minute, before each commit: lint, the unit tests that the change reaches, and the project rules, until one fails
	@STREAMS_APP_TEST_EXAMPLES=quick $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not long" --maxfail=1 $(ARGS) \
	  $$($(BIN)/python -m tests.checkout.changed $(BASE)) tests/test_house.py tests/test_words.py tests/test_changed.py

hook: ## runs `make check` before each commit of this checkout
	@printf '#!/bin/sh\nexec make check\n' > "$$(git rev-parse --git-path hooks/pre-commit)"
	@chmod +x "$$(git rev-parse --git-path hooks/pre-commit)"

nightly: ## CI without the choice of tests: all that are long, on all servers, and all of the simulation, which takes hours
	@bash .ci/run nightly

# make coverage ARGS="tests/unit/live tests/integration/live", for these tests; without it, unit tests and the simulation, half an hour
coverage: install ## branch coverage of each package by tests, in all of their processes
	@$(BIN)/python -m tests.checkout.coverage $(ARGS)

lint: install ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# the tables of docs/reference and docs/explained/compared.md, from the code
docs: install ## writes the tables of docs/, and the picture of the layers
	@$(BIN)/python -m tests.checkout.reference

site: install ## builds the documentation as web pages, in build/site
	@$(BIN)/python -m tests.checkout.site $(ARGS)

# make screenshots ARGS=FOLDER writes many more, of all pages and also at 360 px, into a folder
screenshots: install ## runs the demo, and writes pictures of the console into docs/pictures; needs Chromium
	@$(BIN)/python -m tests.checkout.screenshots $(ARGS)

# needs Rust (cargo); `worker.native = "off"` in the settings leaves it unused
native: install ## builds the native core, and installs it into .venv
	@cargo --version >/dev/null 2>&1 || { echo "Rust is needed to build the native core: https://rustup.rs"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check ./native

# make bench ARGS="--loads hot --runs 1"; `make bench QUICK=1 ARGS="--check-ratio 0.5"`: a minute, fails below half of the README's ratio
bench: install ## speed, beside bare reading and the obvious Faust program
	@$(BIN)/python -m benchmarks $(ARGS)

# make bench-console ARGS="--kafka apache --redis redis --scale 0.2"
bench-console: install ## what pages of the console take with many open groups and dead letters, beside goals and the commands
	@$(BIN)/python -m benchmarks.console $(ARGS)

# make bench-journal ARGS="--kafka apache --redis redis --scale 0.2"; the Redis is emptied, as with bench-live
bench-journal: install ## what a journal takes of Redis, and how fast it is, beside goals, a plain stream a key and a stream a key and day
	@$(BIN)/python -m benchmarks.journal $(ARGS)

# make bench-live ARGS="--kafka apache --redis redis", or --redis redis://localhost:6379/9, an empty one; otherwise the embedded servers
bench-live: install ## what live views cost and how late they are, beside goals, plain sorted sets and being pushed each change
	@$(BIN)/python -m benchmarks.live $(ARGS)

# make chaos ARGS="folds --runs 2 --faults broker-cut-off"; subjects are folds, subscribers, live and journal, which may be named together,
# and stores, mariadb, opensearch, opensearch-groups, upgrade, alerts and bad-input. Without subjects all follow; with --share those of CI.
# make chaos ARGS="folds --topology sentinel --runs 2 --faults primary-killed", or --topology cluster
# make chaos ARGS="alerts --faults 'Redis full,worker gone' --factor 1 --kafka apache"; durations of the rules are divided by the factor
chaos: install ## what breaks under load, and whether anything was lost
	@$(BIN)/python -m tests.chaos $(ARGS)

clean: ## removes what was installed, and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache/streams-app-demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
