# make demo: the main job on embedded data. make test: everything CI runs. Both set up .venv by themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
DEMO := runs/demo

.PHONY: demo test check format clean

$(DONE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "nocl needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(DONE)

demo: $(DONE)
	$(BIN)/nocl run ncm --dataset glyphs --epochs 12 --set recipe.schedule=onecycle --set recipe.augment=crop_flip \
	  --set recipe.normalize=true --out $(DEMO)

check: $(DONE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

format: $(DONE)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache
