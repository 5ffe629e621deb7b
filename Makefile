# `make demo` and `make test` need Python 3.10-3.13, g++ and make; they set up the rest in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard custom_ops/*/*.cc custom_ops/*/*.cu custom_ops/*/*.h)

.PHONY: demo check test test-all test-oldest test-packages asan bench docs lint setup clean wheel

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet "tensorflow>=2.21,<2.22"
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/convpar demo

# Most of a test is TensorFlow tracing in one thread: two run side by side.
BESIDE := -n logical --maxprocesses 4 --dist worksteal

# Two minutes of the tests that are nearest to what has changed since SINCE: where the branch left main.
SINCE ?=

check: setup
	$(BIN)/python tools/check.py $(SINCE)

# What failed beside others is tried once more by itself: a machine that is busy enough holds any process up for as
# long as it likes. Both results stay in the output, and a test that needed it wants mending all the same.
AGAIN := $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test: setup lint
	rm -f .pytest_cache/v/cache/lastfailed
	$(BIN)/python -m pytest $(BESIDE) -m "not slow and not alone" || $(AGAIN)
	$(BIN)/python -m pytest -m "not slow and alone" $$(grep -l mark.alone tests/test_*.py) || $(AGAIN)

test-all: setup lint
	$(BIN)/python -m pytest

# The oldest Keras that pyproject.toml allows, in the place of the one in .venv: what is used of its
# private parts, what is replaced in it, and training, saving and copying.
OLDEST := build/oldest-keras

test-oldest: setup
	test -d $(OLDEST) || $(BIN)/python -m pip install --quiet --no-deps --target $(OLDEST) "keras==3.12.*"
	PYTHONPATH=$(abspath $(OLDEST)) $(BIN)/python -m pytest $(BESIDE) -m "not slow and not alone" \
		tests/test_compat.py tests/test_patches.py tests/test_copying.py tests/test_keras_training.py \
		tests/test_remat_scope.py tests/test_saving.py

# Models of other people's packages. These are in an environment of their own, above .venv, which
# stays as it is: what is there must not be installed in another version. A package that cannot be
# installed is told, and its models are skipped.
PACKAGES := build/packages/venv
ONLY ?=

test-packages: $(PACKAGES)/.installed
	TF_ENABLE_ONEDNN_OPTS=1 $(PACKAGES)/bin/python -m pytest -rfEs tests/packages -k "$(ONLY)"; \
		tests=$$?; $(PACKAGES)/bin/python tests/packages/table.py && exit $$tests

$(PACKAGES)/.installed: $(VENV)/.installed tests/packages/requirements.txt
	$(BIN)/python -m venv $(PACKAGES)
	$(BIN)/python -c "import site, sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
		> $$($(PACKAGES)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beneath.pth
	$(BIN)/python -m pip freeze --exclude-editable > $(PACKAGES)/constraints.txt
	grep -v "^#" tests/packages/requirements.txt | while read -r package; do \
		$(PACKAGES)/bin/python -m pip install --quiet -c $(PACKAGES)/constraints.txt $$package \
			|| echo "$$package: cannot be installed, see above"; \
	done
	touch $@

# The ops with AddressSanitizer and UndefinedBehaviorSanitizer, in a folder of their own, and the
# tests that call them. TensorFlow's headers do not compile with checks for null pointers.
ASAN := build/asan
CHECKS := -fsanitize=address,undefined -fno-sanitize-recover=all \
	-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute
RUNTIMES = $(foreach name,asan ubsan stdc++,$(shell g++ -print-file-name=lib$(name).so))

asan: setup
	TF_CONVPAR_CUDA=0 TF_CONVPAR_FLAGS="-O1 -g1 $(CHECKS)" $(BIN)/python setup.py --quiet \
		build_ext --build-lib $(ASAN) --build-temp $(ASAN)/objects
	LD_PRELOAD="$(RUNTIMES)" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		UBSAN_OPTIONS=print_stacktrace=1 TF_CONVPAR_OPS_FOLDER=$(abspath $(ASAN))/tf_convpar/ops \
		$(BIN)/python -m pytest $(BESIDE) -m "not slow and not alone" \
		$(filter-out %_cuda.py %_sources.py,$(wildcard tests/test_ops_*.py)) \
		tests/test_algorithms_ops.py tests/test_depthwise.py tests/test_pooling.py

bench: setup
	$(BIN)/python benchmarks/run.py

# Only the tools are installed: the package is there. With them no network is needed.
docs: setup
	$(BIN)/python -m pip install --quiet "tf_convpar[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python docs_site/check.py build/site

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(SOURCES)

# One wheel for all Pythons, built from the sources' archive, and tried with these in
# environments that have nothing else, no compiler either.
PYTHONS ?= $(BIN)/python

wheel: setup
	rm -rf build/wheel dist/tf_convpar-*
	$(BIN)/python -m build --quiet --no-isolation --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair \
		--exclude libtensorflow_framework.so.2 --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist
	$(BIN)/python tools/try_wheel.py dist/*.whl $(PYTHONS)

clean:
	rm -rf build dist *.egg-info tf_convpar/ops/*.so tf_convpar/ops/_build_info.json $(VENV)/.installed
