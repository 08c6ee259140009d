# Two commands on a fresh machine with python3 (>= 3.11, venv) and make: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per fit, parallel fits: on small data a second thread costs more than it brings.
export OMP_NUM_THREADS ?= 1
# One thread of linear algebra a process: on few cores more would only wait for each other.
# Test processes side by side: on two cores a third pays, since some tests wait for deadlines.
TEST_PROCESSES ?= 3
# Compiled modules are kept whatever the shell says: else each process, and each command that tests
# start, compiles tests and packages again, 13 s a process.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

