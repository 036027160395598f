# The two commands of the README are `make demo` and `make test`; CI runs the same targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and demo start many processes: where Python was told to keep nothing that it has compiled, each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install help demo check hook test lint docs bench bench-journal bench-live chaos chaos-alerts chaos-journal chaos-live chaos-stores chaos-subscribers chaos-upgrade clean

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

# make test ARGS="-k marks"; most tests wait for processes and servers, so four at once suit two cores.
# Left out: tests marked `long` (outages that must last, wrong clocks, rarer commands, OpenSearch) and the simulation in
# tests/simulation. CI runs both.
# make test ARGS="-m long" runs the marked ones alone, ARGS="-m ''" all: of two -m the last one counts.
test: install ## sets up and passes the tests
	@$(BIN)/python -m pytest -q -n 4 --dist worksteal --ignore=tests/simulation -m "not long" $(ARGS)

# make check BASE=origin/main, for a change of several commits
BASE := HEAD
check: lint ## within a minute, before each commit: lint, the rules of the house, and the unit tests that the change reaches
	@STREAMS_APP_TEST_EXAMPLES=quick $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not long" \
	  tests/test_house.py tests/test_words.py tests/test_changed.py $$($(BIN)/python -m tests.checkout.changed $(BASE))

hook: ## runs `make check` before each commit of this checkout
	@printf '#!/bin/sh\nexec make check\n' > "$$(git rev-parse --git-path hooks/pre-commit)"
	@chmod +x "$$(git rev-parse --git-path hooks/pre-commit)"

lint: install ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# the tables of docs/reference.md and docs/compared.md, from the code
docs: install ## writes the tables of docs/, and the picture of the rooms
	@$(BIN)/python -m tests.checkout.reference

# make bench ARGS="--loads hot --runs 1"; `make bench QUICK=1 ARGS="--check-ratio 0.5"`: a minute, fails below half of the README's ratio
bench: install ## speed, beside bare reading and the obvious Faust program
	@$(BIN)/python -m benchmarks $(ARGS)

# make bench-journal ARGS="--kafka apache --redis redis --scale 0.2"; the Redis is emptied, as with bench-live
bench-journal: install ## what a journal takes of Redis, and how fast it is, beside goals, a plain stream a key and a stream a key and day
	@$(BIN)/python -m benchmarks.journal $(ARGS)

# make bench-live ARGS="--kafka apache --redis redis", or --redis redis://localhost:6379/9, an empty one; otherwise the embedded servers
bench-live: install ## what live views cost and how late they are, beside goals, plain sorted sets and being pushed each change
	@$(BIN)/python -m benchmarks.live $(ARGS)

# Without ARGS Redis behind Sentinel, Redis Cluster, subscribers, read stores, live views, journals, upgrades and the drill of the alerts follow.
# With them it is the folds alone: options differ.
# make chaos ARGS="--runs 2 --faults broker-cut-off --cases 0"; faults under load, then 10 000 cases of each class of bad input
# make chaos ARGS="--topology sentinel --runs 2 --faults primary-killed --cases 0", or --topology cluster
chaos: install ## what breaks under load, and whether anything was lost
	@$(BIN)/python -m tests.chaos $(ARGS)
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m tests.chaos --topology sentinel --runs 4 --seconds 75 --cases 0
	@$(BIN)/python -m tests.chaos --topology cluster --runs 4 --seconds 60 --cases 0
	@$(BIN)/python -m tests.chaos.subscribers
	@$(BIN)/python -m tests.chaos.stores
	@$(BIN)/python -m tests.chaos.live
	@$(BIN)/python -m tests.chaos.journal
	@$(BIN)/python -m tests.chaos.subscribers --topology sentinel --runs 1
	@$(BIN)/python -m tests.chaos.live --topology sentinel --runs 1
	@$(BIN)/python -m tests.chaos.journal --topology sentinel --runs 1
	@$(MAKE) --no-print-directory chaos-upgrade
	@$(BIN)/python -m tests.chaos.alerts
endif

# make chaos-alerts ARGS="--faults 'Redis full,worker gone' --factor 1 --kafka apache"; durations of the rules are divided by the factor
chaos-alerts: install ## the part of it that says after how long which alert fires
	@$(BIN)/python -m tests.chaos.alerts $(ARGS)

# make chaos-stores ARGS="--runs 1 --seconds 20"; two workers sync a PostgreSQL that is killed, filled up and taken back meanwhile,
# or with --store opensearch or opensearch-groups an OpenSearch
chaos-stores: install ## the part of it that read stores have
	@$(BIN)/python -m tests.chaos.stores $(ARGS)

# make chaos-subscribers ARGS="--runs 1 --seconds 15"; subscribers of each guarantee under the faults of `make chaos`; it and the next
# two take --topology sentinel, too, as in ARGS="--topology sentinel --runs 1 --faults primary-killed"
chaos-subscribers: install ## the part of it that subscribers have
	@$(BIN)/python -m tests.chaos.subscribers $(ARGS)

# make chaos-live ARGS="--runs 1 --seconds 20" or ARGS="--share", which is a minute; 200 browsers at 2 hubs under the faults of `make chaos`, and those of hubs
chaos-live: install ## the part of it that live views have
	@$(BIN)/python -m tests.chaos.live $(ARGS)

# make chaos-journal ARGS="--runs 1 --seconds 20" or ARGS="--share", which is a minute; 30 readers and 30 followers of a journal under
# faults of `make chaos`, and kills at points of its keeper, as in ARGS="--faults killed-in-drop,killed-midnight"
chaos-journal: install ## the part of it that journals have
	@$(BIN)/python -m tests.chaos.journal $(ARGS)

# make chaos-upgrade ARGS="--runs 1" or ARGS="--share"; workers of the last released state (the newest tag v*, or the commit in
# tests/chaos/released.txt) and of this one replace each other, and some are killed while both run
chaos-upgrade: install ## the part of it that says whether versions run beside each other, up and down
	@CHAOS_SUBSCRIBERS=at_least_once,deduplicated,at_most_once $(BIN)/python -m tests.chaos.upgrade $(ARGS)

clean: ## removes what was installed, and caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache/streams-app-demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
