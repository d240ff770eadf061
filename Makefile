# Every developer command. `make` alone lists them.
SHELL := /bin/bash
export PATH := $(CURDIR)/.venv/bin:$(PATH)
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
C_FILES = $(wildcard $(shell git ls-files --cached --others --exclude-standard 'dpdk_ext/*.c' 'dpdk_ext/*.h'))
PY_DIRS := netreplay clients appliance $(wildcard tests examples docs)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1@\2/' | column -t -s@

.PHONY: setup
setup: ## install what is missing (Debian packages, .venv) and build; nothing to do: well under a second
	@.ci/setup

.PHONY: demo
demo: setup ## a server, two actors and a learner on CartPole; ARGS="--seed 2 ..." is handed on
	@$(BIN)/netreplay demo $(ARGS)

.PHONY: test
test: setup test-c test-py ## all tests: C (plain and under sanitizers), then pytest

.PHONY: test-c
test-c: test-c-plain test-c-asan test-c-dpdk ## the C unit tests, plain and under sanitizers; TESTS="tree" runs only that one

.PHONY: test-long
test-long: setup build/plain/build.ninja ## what takes too long for every day: 10^8 draws on partly filled trees
	@$(call ninja,build/plain)
	@echo "sum tree: twice 10^8 draws, 10^6 updates over 8 decades"
	@time build/plain/dpdk_ext/tests/test_sum_tree 100000000

# A test build holds the C alone, with asserts on.
ninja = flock $(1)/.lock $(BIN)/ninja -C $(1) --quiet
C_SETUP := -Dpython=disabled -Ddpdk=disabled -Dtests=true

build/plain/build.ninja: | setup
	@$(BIN)/meson setup build/plain $(C_SETUP) >/dev/null || { cat build/plain/meson-logs/meson-log.txt; exit 1; }

build/asan/build.ninja: | setup
	@$(BIN)/meson setup build/asan $(C_SETUP) --buildtype=debug -Doptimization=1 \
	    -Db_sanitize=address,undefined -Db_lundef=false >/dev/null || { cat build/asan/meson-logs/meson-log.txt; exit 1; }

.PHONY: test-c-plain
test-c-plain: setup build/plain/build.ninja
	@echo "C unit tests"
	@$(call ninja,build/plain)
	@$(BIN)/meson test -C build/plain --no-rebuild --print-errorlogs $(TESTS)

.PHONY: test-c-asan
test-c-asan: setup build/asan/build.ninja
	@echo "C unit tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@$(call ninja,build/asan)
	@UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	    $(BIN)/meson test -C build/asan --no-rebuild --print-errorlogs --timeout-multiplier 5 $(TESTS)

build/coverage/build.ninja: | setup
	@$(BIN)/meson setup build/coverage $(C_SETUP) --buildtype=debug -Doptimization=1 -Dwerror=false -Db_coverage=true >/dev/null || \
	    { cat build/coverage/meson-logs/meson-log.txt; exit 1; }

# Only what cannot be measured fails: a failed test is the business of test-c. At -O1 gcc takes some variables of the tests for
# uninitialized, so warnings are none of this build's.
.PHONY: coverage
coverage: setup build/coverage/build.ninja ## lines of engine and protocol that the C unit tests run; those that they do not
	@echo "C unit tests, with every line counted"
	@$(call ninja,build/coverage)
	@find build/coverage -name '*.gcda' -delete
	@$(BIN)/meson test -C build/coverage --no-rebuild --print-errorlogs --timeout-multiplier 5 $(TESTS) || \
	    echo "coverage: some tests failed; what they ran counts"
	@for part in engine protocol; do \
	    $(BIN)/gcovr --root . --filter "dpdk_ext/$$part/" --merge-mode-functions=separate --sort uncovered-number \
	        --txt - build/coverage || exit 1; \
	done

build/dpdk/build.ninja: | setup
	@$(BIN)/meson setup build/dpdk -Dpython=disabled -Ddpdk=enabled -Dtests=true >/dev/null || \
	    { cat build/dpdk/meson-logs/meson-log.txt; exit 1; }

.PHONY: test-c-dpdk
test-c-dpdk: setup ## the tests of DPDK ports, where libdpdk is found
	@if ! pkg-config --exists 'libdpdk >= 22.11'; then echo "no libdpdk: the tests of DPDK ports are left out"; exit 0; fi; \
	echo "DPDK ports"; \
	$(MAKE) build/dpdk/build.ninja && \
	$(call ninja,build/dpdk) && $(BIN)/meson test -C build/dpdk --no-rebuild --print-errorlogs --suite dpdk

.PHONY: test-py
test-py: setup ## pytest without the benchmarks; ARGS="-k name" is handed on
	@$(BIN)/python -m pytest tests --ignore=tests/bench $(ARGS)

.PHONY: bench
bench: setup ## all benchmarks of kernel bypass, or one file of tests/bench: make bench-NAME (engine: beside its peers)
	@$(BIN)/python -m pytest tests/bench --ignore=tests/bench/bench_engine.py --ignore=tests/bench/bench_instructions.py -s $(ARGS)

bench-%: setup
	@$(BIN)/python -m pytest tests/bench/bench_$(subst -,_,$*).py -s $(ARGS)

.PHONY: lint
lint: setup ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check $(PY_DIRS)
	$(BIN)/ruff format --check $(PY_DIRS)
	$(BIN)/mypy --strict -p netreplay
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

.PHONY: format
format: setup ## format the Python and the C
	$(BIN)/ruff check --fix --quiet $(PY_DIRS) || true
	$(BIN)/ruff format $(PY_DIRS)
	$(BIN)/clang-format -i $(C_FILES)

.PHONY: wheel
wheel: setup ## an abi3 wheel in dist/, without DPDK unless DPDK=enabled
	@$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps -w dist . \
	    --config-settings=setup-args=-Ddpdk=$(or $(DPDK),disabled)
	@ls -1 dist/*.whl

.PHONY: clean
clean: ## remove what was built, but for .venv
	rm -rf build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f netreplay/*.so netreplay/clients netreplay/appliance
	find netreplay clients appliance tests -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove .venv too
	rm -rf .venv
