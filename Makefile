# The project's commands. `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-spark check kills cluster chaos contract large format bench clean java

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.setup-done
BENCH := .venv/.bench-done
VERSION ?= 4.1
SPARK := .venv-spark-$(VERSION)
WITH_JAVA = JAVA_HOME="$$(scripts/java.sh)" && export JAVA_HOME &&
QUICK_JVM = SPARK_SUBMIT_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP) java ## make .venv with tailrace and all that its tests need; quick the second time

demo: setup ## see it work: PostgreSQL into SQLite, killed in the middle, compared at the end
	@$(WITH_JAVA) $(BIN)/tailrace demo

test: setup ## check, then all other tests but the longest
	@$(MAKE) --no-print-directory check
	-@$(MAKE) --no-print-directory .venv-spark-4.1/.setup-done # without it a test is skipped, or fails in CI
	@$(WITH_JAVA) $(QUICK_JVM) $(BIN)/pytest --ignore=tests/unit -m "not long" --durations=12 \
	  --numprocesses=3 --dist=loadfile --no-loadscope-reorder

test-spark: $(SPARK)/.setup-done java ## the tests of Spark and the demo's story with another VERSION of it, such as 4.2: ten minutes
	@$(WITH_JAVA) $(QUICK_JVM) $(SPARK)/bin/pytest tests/spark tests/databases/test_readers.py \
	  tests/databases/test_demo.py::test_the_demo_survives_its_kill_and_ends_identical

check: $(SETUP) ## format, lint, types, layers and unit tests: under two minutes
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/unit

kills: setup ## the longest of the tests: kills in every phase, frozen servers, full disks: ten minutes
	@$(WITH_JAVA) $(QUICK_JVM) $(BIN)/pytest -m long --ignore=tests/cluster --numprocesses=3 --dist=loadfile --no-loadscope-reorder

cluster: setup ## a Spark cluster of this machine: kills, state in an object store, two million rows: some minutes
	@$(WITH_JAVA) $(QUICK_JVM) $(BIN)/pytest tests/cluster

chaos: setup ## millions of rows into every sink, a bank with an observer, and kills: more than an hour
	@$(WITH_JAVA) TAILRACE_CHAOS_SCALE=1 $(BIN)/pytest -s tests/crash/test_chaos.py tests/crash/test_chaos_bank.py tests/seeds/test_pg2any.py

contract: setup ## the suites of all connectors and stores, each way in every server: a quarter of an hour
	@TAILRACE_CONTRACT=1 $(BIN)/pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder tests/contract

large: setup ## the memory of every process with 600 rows of 1 MB, a value of 200 MB, 2,000,000 rows at once: some minutes
	@$(WITH_JAVA) TAILRACE_LARGE=1 $(BIN)/pytest -s tests/databases/test_large_values.py \
	  tests/databases/test_hard_cases.py::test_a_transaction_of_very_many_rows_goes_through_in_bounded_memory

format: $(SETUP) ## format the code and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: setup $(BENCH) ## run the benchmarks, or those that ONLY names; results in benchmarks/results.json
	@$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m benchmarks $(ONLY)

clean: ## remove .venv and everything else that can be made again
	rm -rf .venv .venv-spark-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@scripts/java.sh > /dev/null

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: tailrace needs Python 3.11 or newer and \
	$(PYTHON) is " + sys.version.split()[0] + "\nhint: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,demo]'
	@touch $@

.venv-spark-%/.setup-done: pyproject.toml
	$(PYTHON) -m venv .venv-spark-$*
	.venv-spark-$*/bin/pip install --quiet --disable-pip-version-check --editable '.[test,demo]' 'pyspark==$*.*'
	@touch $@

$(BENCH): $(SETUP)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@
