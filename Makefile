# The project's commands. `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check kills chaos contract large format bench clean java

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.setup-done
BENCH := .venv/.bench-done
WITH_JAVA = JAVA_HOME="$$(scripts/java.sh)" && export JAVA_HOME &&
QUICK_JVM = SPARK_SUBMIT_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP) java ## make .venv with tailrace and all that its tests need; quick the second time

demo: setup ## see it work: PostgreSQL into SQLite, killed in the middle, compared at the end
	@$(WITH_JAVA) $(BIN)/tailrace demo

test: setup ## check, then all other tests but the longest
	@$(MAKE) --no-print-directory check
	@$(WITH_JAVA) $(QUICK_JVM) $(BIN)/pytest --ignore=tests/unit -m "not long" --numprocesses=2 --dist=loadfile

check: $(SETUP) ## format, lint, types, layers and unit tests: under two minutes
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/unit

kills: setup ## the longest of the tests: kills in every phase, frozen servers, full disks: ten minutes
	@$(WITH_JAVA) $(QUICK_JVM) $(BIN)/pytest -m long --numprocesses=2 --dist=loadfile

chaos: setup ## millions of rows into every sink, a bank with an observer, and kills: three quarters of an hour
	@$(WITH_JAVA) TAILRACE_CHAOS_SCALE=1 $(BIN)/pytest -s tests/crash/test_chaos.py tests/crash/test_chaos_bank.py

contract: setup ## the suites of all sinks, each way in every server: a quarter of an hour
	@TAILRACE_CONTRACT=1 $(BIN)/pytest --numprocesses=2 --dist=loadfile tests/contract

large: setup ## the memory of every process with 600 rows of 1 MB, a value of 200 MB, 2,000,000 rows at once: some minutes
	@$(WITH_JAVA) TAILRACE_LARGE=1 $(BIN)/pytest -s tests/databases/test_large_values.py \
	  tests/databases/test_hard_cases.py::test_a_transaction_of_very_many_rows_goes_through_in_bounded_memory

format: $(SETUP) ## format the code and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: setup $(BENCH) ## run the benchmarks, or those that ONLY names; results in benchmarks/results.json
	@$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m benchmarks $(ONLY)

clean: ## remove .venv and everything else that can be made again
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@scripts/java.sh > /dev/null

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: tailrace needs Python 3.11 or newer and \
	$(PYTHON) is " + sys.version.split()[0] + "\nhint: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,demo]'
	@touch $@

$(BENCH): $(SETUP)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@
