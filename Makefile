# The commands of this repository. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help env lock lint test test-slow chaos bench-quick bench-generate scale demo demo-check airflow clean
VENV := .venv
RUN := $(VENV)/bin/python
# What pytest is given, for example: make test PYTEST_ARGS="-k planner -x"
PYTEST_ARGS ?=
# How many processes `make chaos` kills, and which random moments it draws.
KILLS ?= 200
SEED ?= 1
# The job that `make demo`, `make airflow` and `make demo-check` show: jobs/reviews_sentiment.yaml or _summary.yaml.
JOB ?= jobs/reviews_sentiment.yaml

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "make %-12s %s\n", $$1, $$2}'

env: $(VENV)/.ready ## make the environment in .venv (PYTHON=... names a Python 3.11)

$(VENV)/.ready: requirements.lock requirements-data.lock pyproject.toml scripts/make_env.sh
	@VENV=$(VENV) scripts/make_env.sh

lock: ## resolve requirements*.in into the lock files
	@VENV=$(VENV) scripts/make_env.sh lock

lint: env ## ruff (rules and format) and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict -p pipeline -p compile -p demo -p bench
	$(VENV)/bin/mypy --strict dags/*.py

test: env ## the test suite, in as many processes as there are cores, each with servers of its own
	@VENV=$(VENV) scripts/make_env.sh sagemaker >/dev/null
	$(RUN) -m pytest -m "not slow" -n auto --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-slow: env ## the tests that take minutes each
	@VENV=$(VENV) scripts/make_env.sh sagemaker >/dev/null
	$(RUN) -m pytest -m slow $(PYTEST_ARGS)

chaos: env ## kill -9 at random moments: KILLS=200 SEED=1, then the slow fault tests
	@PYTHONPATH=.:tests $(RUN) -m chaos_run --kills $(KILLS) --seed $(SEED)
	$(RUN) -m pytest -m slow tests/test_s3_faults.py tests/test_faulty_runs.py tests/test_neuron_chaos.py

bench-quick: env ## Lengthwise against what one would write instead, in CPU seconds (about 4 minutes)
	@$(RUN) -m bench.quick

bench-generate: env ## generation: Lengthwise against OpenVINO GenAI and transformers, tokens per CPU second (about 25 minutes)
	@$(RUN) -m bench.generate

scale: env ## memory and time by step, from 10,000 rows to 10,000,000 with a target that costs nothing (an hour)
	@$(RUN) -m bench.scale

demo: env ## three nights of real reviews through S3, Airflow and DuckDB; JOB=jobs/reviews_summary.yaml: one of texts
	@$(RUN) -m demo.run --job $(JOB)

demo-check: env ## after `make demo`: is its answer the one of a plain transformers loop?
	@$(RUN) -m demo.check --job $(JOB)

airflow: env ## the demo's servers, left running until Ctrl-C
	@$(RUN) -m demo.run --serve --job $(JOB)

clean: ## remove the environment, the demo's data and all caches
	rm -rf $(VENV) .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
