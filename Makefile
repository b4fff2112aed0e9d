# GPU workshop: everything runs in one environment, built once from pyproject.toml.
#
#   VENV    folder of the environment      make loop VENV=~/envs/gpuworkshop
#   PYTHON  the Python that creates it     make loop PYTHON=python3.12
#   TORCH   what pip installs first        make loop TORCH="torch==2.14.1 torchvision==0.29.1"

VENV ?= .venv
PYTHON ?= python3
TORCH ?=

BIN := $(VENV)/bin
NOTEBOOKS := $(wildcard notebooks solutions)

.DEFAULT_GOAL := help
.PHONY: help loop lab test check notebooks slides tables scripts bench

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

loop: $(VENV)/.course ## run the main job on this machine and print its report
	$(BIN)/gpuworkshop loop

lab: $(VENV)/.course ## open JupyterLab on the course, reachable from this machine only
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --ip=127.0.0.1 --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks

test: $(VENV)/.test ## run every test and every notebook
	$(BIN)/python -m pytest tests $(NOTEBOOKS) -m "not alone" -n 2 --dist loadfile --nbval-lax --nbval-current-env --nbval-cell-timeout=300
	$(BIN)/python -m pytest tests -m alone

check: $(VENV)/.test ## lint the code
	$(BIN)/ruff check .

notebooks: $(VENV)/.test ## write the notebooks from their sources in solutions/
	$(BIN)/python solutions/make.py

slides: $(VENV)/.slides ## write the slides and the card into slides/build/; needs npm once, and Chromium
	$(BIN)/python slides/make.py

tables: $(VENV)/.course ## write README's tables and pictures and the tables of slides/INSTRUCTOR.md
	$(BIN)/python solutions/tables.py README.md
	$(BIN)/python solutions/pictures.py README.md
	$(BIN)/python slides/instructor.py

scripts: $(VENV)/.course ## write the job scripts of slurm/ from the site file
	$(BIN)/python solutions/scripts.py

bench: $(VENV)/.course ## time the start of the command, and verify against the shortest use of PyTorch
	$(BIN)/python tests/bench_start.py
	$(BIN)/python tests/bench_verify.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 loop" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

# Stamps in one environment: the tests and the slides add to what is there.
$(VENV)/.course: pyproject.toml | $(BIN)/python
ifneq ($(strip $(TORCH)),)
	$(BIN)/python -m pip install $(TORCH)
endif
	$(BIN)/python -m pip install -e '.[course]'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.course
	$(BIN)/python -m pip install -e '.[course,test]'
	@touch $@

$(VENV)/.slides: pyproject.toml slides/package-lock.json | $(BIN)/python
	$(BIN)/python -m pip install -e '.[slides]'
	npm ci --prefix slides --ignore-scripts --no-audit --no-fund
	@touch $@
