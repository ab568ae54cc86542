# make demo: the main job on embedded data. make test: everything CI runs. Both set up .venv by themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
DEMO := runs/demo
LEFT_OUT := $(VENV)/left-out.json

.PHONY: demo docs test check chromium format clean

$(DONE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "nocl needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(DONE)

# Both methods share the network that the first one trains. DSR runs with a smaller projection and fewer iterations than
# the paper's.
GLYPHS := --dataset glyphs --data test_per_class=10 --base-batch-size 32 --schedule onecycle --out $(DEMO)

demo: $(DONE)
	$(BIN)/nocl run ncm $(GLYPHS) --epochs 8 --set recipe.weight_decay=5e-4 --set recipe.augment=crop_flip \
	  --set recipe.normalize=true
	$(BIN)/nocl run dsr $(GLYPHS) --backbone-from $(DEMO)/cache/base-*.safetensors --set recipe.objective=ce \
	  --set recipe.lr=0.02 --set recipe.head_epochs=20 --set dim=128 --set iterations=5 --set samples=10
	$(BIN)/nocl report $(DEMO) --out $(DEMO)

# The site, into site/. Wrong links and anchors are errors.
docs: $(DONE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

check: $(DONE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The page is tested in a real browser: Debian's Chromium, installed where we may, else named at the end.
chromium:
	@command -v chromium chromium-browser >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium for the tests of the page" && \
	  { apt-get install -y -qq chromium >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1; }; } || true

# The last line says what both runs of pytest left out, and how to have it.
test: check chromium
	@rm -f $(LEFT_OUT)
	NOCL_LEFT_OUT=$(LEFT_OUT) OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal
	NOCL_LEFT_OUT=$(LEFT_OUT) OMP_NUM_THREADS=1 $(BIN)/pytest -m ray tests/experiments/test_ray.py tests/app/test_sharded_ray.py

format: $(DONE)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache
