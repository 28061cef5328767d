# Two commands do all the set-up: `make demo` and `make test`. Every target makes its own .venv when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
ALL := $(VENV)/.installed
# Two more than there are cores: tests wait for processes and limits, too.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# uv where it is installed, pip elsewhere. A lock names every package, so nothing is left to resolve.
ifneq ($(shell command -v uv),)
NEW_VENV := uv venv --quiet --seed --python $(PYTHON) $(VENV)
INSTALL := uv pip install --quiet --python $(BIN)/python
else
NEW_VENV := $(PYTHON) -m venv $(VENV)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
endif
# Scripts cannot write bytecode in their sandbox, so it is written here; that of other packages' tests is left out.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
COMPILE_LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-annotate --no-header pyproject.toml
# What tests start again and again is compiled once, wherever they run.
unexport PYTHONDONTWRITEBYTECODE
CORE_TESTS := tests/test_models.py tests/test_scores.py tests/test_config.py tests/test_codeblocks.py tests/test_prompts.py tests/method tests/data tests/holdout

.PHONY: help demo test test-core test-pythons lint format snapshots docs bench bench-quality trace soak mutate release-check lock clean
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(CORE): pyproject.toml requirements.lock
	@echo "Installing what a run needs into $(VENV): about a minute, and 0.9 GB, of which the Claude CLI is a third."
	@test -x $(BIN)/python || $(NEW_VENV)
	@$(INSTALL) --no-deps --requirement requirements.lock
	@$(INSTALL) --no-deps --editable .
	@$(COMPILE)
	@touch $@

$(ALL): $(CORE) requirements-dev.lock
	@echo "Installing what tests, lint and documentation need into $(VENV): a few minutes, and 1.4 GB more."
	@$(INSTALL) --no-deps --requirement requirements-dev.lock
	@$(COMPILE)
	@touch $@

demo: $(CORE) ## run the whole method on an example task, with no key and no internet
	$(BIN)/mle-star demo

test: $(ALL) ## run every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-core: $(CORE) ## the tests of models, data, scores and method, with what a run needs and little else
	@$(INSTALL) --constraint requirements-dev.lock hypothesis jsonschema mypy pytest pytest-asyncio pytest-timeout pytest-xdist
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile $(CORE_TESTS)

test-pythons: ## test-core on every Python from 3.10 to 3.14 that is at hand
	@$(PYTHON) tools/pythons.py | while read version python; do echo "== Python $$version"; \
		$(MAKE) --no-print-directory VENV=.pythons/$$version PYTHON=$$python test-core </dev/null || exit 1; done

lint: $(ALL) ## format, lint, types, layers, the size of rooms and the oldest Python
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budget.py
	! $(BIN)/vermin --quiet --violations --target=3.10- --no-tips src tests tools benchmarks | grep .  # a file that it cannot place is a finding, too

format: $(ALL) ## fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

snapshots: $(ALL) ## write the snapshots of prompts, views, data, records and the engineer again; look at the difference
	UPDATE_SNAPSHOTS=1 $(BIN)/python -m pytest -q $$(grep -rl as_kept --include='test_*.py' tests)

docs: $(ALL) ## the guides as pages, in .site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

bench: $(ALL) ## run the benchmarks; each prints ratios against its yardstick
	@for b in agents harness pipeline display; do echo "== $$b"; $(BIN)/python benchmarks/$$b.py || exit 1; done

bench-quality: $(ALL) ## compare with FLAML and AutoGluon on real data (long)
	$(BIN)/python benchmarks/quality.py --rivals flaml,autogluon

trace: $(ALL) ## every requirement with the tests that name it; writes docs/traceability.md
	$(BIN)/python tools/trace.py --write

soak: $(ALL) ## every test that is only sampled by `make test`, whole, and the demo (long)
	MLE_STAR_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) $$(grep -rlE 'SOAK|hypothesis' --include='test_*.py' tests)  # whoever has more to do in a soak names it

mutate: $(ALL) ## mutation testing, module by module (long; docs/mutation.md)
	$(INSTALL) --editable '.[mutate]'
	$(BIN)/python tools/mutate.py

release-check: ## build sdist and wheel, check them, use the wheel alone with and without extras (long)
	$(PYTHON) tools/release.py

lock: $(CORE) ## raise the locked dependencies: requirements-dev.lock has all, requirements.lock the same versions of what a run needs
	$(INSTALL) uv
	$(COMPILE_LOCK) --upgrade --extra ml --extra ray --extra mlflow --extra kaggle --extra dev -o requirements-dev.lock
	$(COMPILE_LOCK) --upgrade --extra demo --constraint requirements-dev.lock -o requirements.lock

clean: ## remove what the targets made
	rm -rf $(VENV) .pythons .bench .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo dist mutants .site
