# Needs git, make and Python 3.11 or newer; nothing has to be activated. `make` lists the targets.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:  # the steps share one .venv; the tests run in parallel by themselves
.PHONY: help run demo test proof test-under-load mutants bench format lock clean FORCE

BIN := .venv/bin
PIP := $(BIN)/python -m pip
ARGS ?=
UV ?= uv

# Variables of a shell that would change which packages are found or where they are installed, or that make every process
# of the tests compile its modules.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH PYTHONWARNINGS VIRTUAL_ENV
unexport PIP_CONSTRAINT PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_USER
unexport UV_EXTRA_INDEX_URL UV_FIND_LINKS UV_INDEX UV_INDEX_URL
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo '  ARGS="…" is passed on (run, demo, test, bench, proof, lock); PYTHON=… chooses the interpreter.'

run: .venv/.run .venv/.package  ## install what is needed and start the service on 127.0.0.1:8080
	@exec $(BIN)/semel run $(ARGS)

demo: .venv/.run .venv/.package  ## kill workers during a burst of duplicated events, and count the effects
	@$(BIN)/semel demo $(ARGS)

test: .venv/.dev .venv/.package  ## check everything: format, lint, types, tests
	@echo '→ format'
	@$(BIN)/ruff format --check .
	@echo '→ lint'
	@$(BIN)/ruff check .
	@echo '→ types'
	@$(BIN)/mypy
	@echo '→ RabbitMQ for the tests'
	@$(BIN)/python -m tests.support.servers.rabbitmq_packages || true  # without it, the tests say why
	@echo '→ tests'
	@$(PYTEST) -p no:schemathesis -n 4 --dist worksteal $(ARGS)

# Many tests wait for servers and leases, so there are more workers than processors, and idle ones take over tests of
# busy ones. No test is run a second time. Only `make proof` uses the plugin of schemathesis, which is slow to import.
PYTEST := $(BIN)/python -m pytest --durations 20 --durations-min 1

proof: .venv/.dev .venv/.package  ## races, storms, kill runs, planted bugs, long properties (minutes)
	@$(BIN)/python -m tests.support.servers.rabbitmq_packages || true  # without it, the tests say why
	@$(PYTEST) -n 4 --dist worksteal -m 'long or hypothesis' --hypothesis-profile proof --timeout 1200 $(ARGS)

test-under-load: .venv/.dev .venv/.package  ## run the tests three times while other processes use every processor
	@for round in 1 2 3; do \
		echo "→ tests under load, round $$round of 3"; \
		$(BIN)/python tools/under_load.py $(PYTEST) -p no:schemathesis -n 4 --dist worksteal $(ARGS) || exit; \
	done

bench: .venv/.dev .venv/.package  ## measure (minutes, and 6 GB of disk for a while)
	@$(BIN)/semel bench --peers bench/peers.py --keys 10000000 $(ARGS)
	@$(BIN)/python -m bench.service
	@$(BIN)/python -m bench.stores
	@$(BIN)/python -m bench.sources
	@$(BIN)/python -m bench.outbox

mutants: .venv/.dev .venv/.package  ## try random mutants of the safety packages (hours; ARGS="--seed 7 --count 20")
	@$(BIN)/python tools/mutants.py $(ARGS)

format: .venv/.dev  ## format the code and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Pins stay as they are unless pyproject.toml or an .in file asks for something else; ARGS=--upgrade moves them.
COMPILE = $(UV) pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock' $(ARGS)

lock:  ## rewrite requirements/*.txt, with hashes (needs uv)
	@command -v $(UV) >/dev/null || { echo 'make lock needs uv: install it, or set UV=path/to/uv' >&2; exit 1; }
	@echo '→ requirements/run.txt'
	@$(COMPILE) pyproject.toml --extra service requirements/run.in -o requirements/run.txt
	@echo '→ requirements/dev.txt'
	@$(COMPILE) pyproject.toml --extra service --extra redis --extra postgres --extra aws --extra kafka --extra rabbitmq --extra testing \
		requirements/run.in requirements/dev.in -c requirements/run.txt -o requirements/dev.txt
	@echo '→ requirements/openapi-client.txt'
	@$(COMPILE) requirements/openapi-client.in -o requirements/openapi-client.txt

clean:  ## remove the environment and everything generated
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps below live in .venv, so that nothing is installed twice and `make clean` forgets all of them.

# Each may be on the path more than once, and the first one may be an inactive shim.
PYTHONS := python3.13 python3.12 python3.11 python3

# Prints what it runs on, and fails where a pyenv shim points nowhere, Python is old or Debian left out venv.
PROBE := import ensurepip, os, sys, venv; assert sys.version_info >= (3, 11); \
	print(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))

# Checked every time; rewritten, with a new environment, only if the interpreter or the folder changed.
.venv/.python: FORCE
	@python=$$(IFS=:; for name in $(if $(PYTHON),"$(PYTHON)",$(PYTHONS)); do \
		case $$name in */*) folders=.;; *) folders=$$PATH;; esac; \
		for folder in $$folders; do \
			case $$name in */*) candidate=$$name;; *) candidate=$$folder/$$name;; esac; \
			"$$candidate" -c '$(PROBE)' 2>/dev/null && exit; \
		done; \
	done); \
	if [ -z "$$python" ]; then \
		echo 'Semel needs Python 3.11 or newer with its venv module (Debian: apt install python3-venv).' >&2; \
		echo 'Tried: $(or $(PYTHON),$(PYTHONS)). Set PYTHON=path/to/python to choose one.' >&2; \
		exit 1; \
	fi; \
	made_with="$$("$$python" -V) $$python $$(pwd)"; \
	if [ "$$(cat $@ 2>/dev/null)" != "$$made_with" ]; then \
		echo "→ making .venv with $$("$$python" -V) ($$python)"; \
		rm -rf .venv && "$$python" -m venv .venv && printf '%s\n' "$$made_with" >$@; \
	fi

.venv/.run: requirements/run.txt .venv/.python
	@echo '→ installing what Semel needs to run'
	@$(PIP) install -qq --require-hashes -r requirements/run.txt
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.python
	@echo '→ installing the development tools'
	@$(PIP) install -qq --require-hashes -r requirements/dev.txt
	@touch $@ .venv/.run  # dev.txt holds all of run.txt

.venv/.package: pyproject.toml .venv/.run
	@echo '→ installing semel itself, editable'
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@touch $@
