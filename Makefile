# Every target prepares .venv by itself (scripts/setup), once per change of pyproject.toml or constraints.txt.
#   PYTHON   the interpreter .venv is made from (default python3, at least 3.11)
#   SIZE     how much `make quickstart` or `make benchmark` does; `make quickstart SIZE=tiny` is the short version
#   SEEDS    seeds of `make film-reviews`, one after the other: SEEDS="0 1 2"
#   ARGS     handed on by `make test` to pytest, `make test ARGS="tests/algo -k gae"`, and by `make benchmark`

.DEFAULT_GOAL := help
.PHONY: help quickstart film-reviews test soak benchmark time-to-gain check lint docs setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## set up, then align a real model on this machine's CPU (SIZE=tiny: the short version)
	@scripts/setup quickstart
	@.venv/bin/surefoot quickstart $(if $(SIZE),--size $(SIZE))

film-reviews: ## set up, then ratings to a reward model to PPO, judged on held-out films (SIZE=quick; SEEDS="0 1 2")
	@scripts/setup examples
	@.venv/bin/python examples/film-reviews/films.py $(if $(SIZE),--size $(SIZE)) $(if $(SEEDS),--seeds $(SEEDS))

test: ## set up, then lint, strict types and every test but the soak tests
	@scripts/setup dev
	@scripts/test $(ARGS)

soak: ## set up, then the longer proofs: many kills, more seeds, mutations of the sources
	@scripts/setup dev
	@scripts/soak $(ARGS)

benchmark: ## set up, then measure against TRL's PPO trainer (SIZE=quick: under 20 minutes; SIZE=tiny: a toy, without TRL)
	@scripts/setup quickstart
	@.venv/bin/python -m benchmarks.run $(if $(SIZE),--size $(SIZE)) $(ARGS)

time-to-gain: ## set up, then time Surefoot and TRL to the same held-out gain (one to two hours; SIZE=tiny: a toy)
	@scripts/setup quickstart
	@.venv/bin/python -m benchmarks.time_to_gain $(if $(SIZE),--size $(SIZE)) $(ARGS)

check: ## set up, then lint, strict types, architecture and documents: a minute, before each commit
	@scripts/setup dev
	@scripts/check

lint: ## set up, then lint and format, changing files in place
	@scripts/setup dev
	@scripts/lint --fix

docs: ## set up, then write the generated pages anew and test the documents
	@scripts/setup dev
	@scripts/docs

setup: ## only set up .venv for development
	@scripts/setup dev

clean: ## remove caches and builds; .venv and runs/ stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache src/surefoot.egg-info
	@find src tests scripts -type d -name __pycache__ -prune -exec rm -rf {} +
