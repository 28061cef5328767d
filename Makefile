# Two commands do all the set-up: `make demo` and `make test`. Every target makes its own .venv when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One more than there are cores: tests wait for processes, too.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: help demo test lint format snapshots docs bench bench-quality trace soak mutate lock clean
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

demo: $(STAMP) ## run the whole method on an example task, with no key and no internet
	$(BIN)/mle-star demo

test: $(STAMP) ## run every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(STAMP) ## format, lint, types, layers, the size of rooms and the oldest Python
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budget.py
	! $(BIN)/vermin --quiet --violations --target=3.10- --no-tips src tests tools benchmarks | grep .  # a file that it cannot place is a finding, too

format: $(STAMP) ## fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

snapshots: $(STAMP) ## write the snapshots of prompts, views, the method, data, scores and the engineer anew; look at the difference
	UPDATE_SNAPSHOTS=1 $(BIN)/python -m pytest -q tests/test_prompts.py tests/method/test_rich_prompts.py tests/views/test_words.py tests/engineer/test_design.py tests/data/test_seen.py tests/data/test_task_folders.py tests/holdout/test_scorer.py tests/method/test_attempts.py tests/method/test_phase2_outer.py tests/method/test_time.py

docs: $(STAMP) ## the guides as pages, in .site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

bench: $(STAMP) ## run the benchmarks; each prints ratios against its yardstick
	@for b in agents harness pipeline display; do echo "== $$b"; $(BIN)/python benchmarks/$$b.py || exit 1; done

bench-quality: $(STAMP) ## compare with FLAML and AutoGluon on real data (long)
	$(BIN)/python benchmarks/quality.py --rivals flaml,autogluon

trace: $(STAMP) ## every requirement with the tests that name it; writes docs/traceability.md
	$(BIN)/python tools/trace.py --write

soak: $(STAMP) ## every test that is only sampled by `make test`, whole, and the demo (long)
	MLE_STAR_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) $$(grep -rlE 'SOAK|hypothesis' --include='test_*.py' tests)  # whoever has more to do in a soak names it

mutate: $(STAMP) ## mutation testing, module by module (long; docs/mutation.md)
	$(BIN)/python -m pip install --quiet --editable '.[mutate]'
	$(BIN)/python tools/mutate.py

lock: $(STAMP) ## raise the locked dependencies
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --upgrade --quiet --universal --python-version 3.10 --extra ml --extra ray --extra mlflow --extra kaggle --extra dev --no-annotate --no-header pyproject.toml -o requirements.lock

clean: ## remove what the targets made
	rm -rf $(VENV) .bench .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo dist mutants .site
