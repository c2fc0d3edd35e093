# SPDX-License-Identifier: Apache-2.0
# Every target first runs a script of scripts/, which installs what is missing and is quick when
# nothing is. check, format and docs need neither torch nor CMake.
.DEFAULT_GOAL := build
.PHONY: build test test-long demo bench python wheel docs format check asan asan-torch tsan fuzz coverage clean help setup

PRESET ?= release
CUDA ?= AUTO
TOOLCHAIN := build/toolchain.mk
ifneq ($(filter-out check clean docs format help,$(or $(MAKECMDGOALS),build)),)
-include $(TOOLCHAIN)
endif
JOBS ?= $(shell nproc)
# fuzz: seconds for each target.
FUZZ_SECONDS ?= 60
# test-long: fuzz inputs, how many times the random cases, and how many killed training runs.
LONG_INPUTS ?= 200000000
LONG_SCALE ?= 5
LONG_KILLS ?= 40

build: configure  ## build build/release/diffattn
	@$(CMAKE) --build --preset $(PRESET) -j $(JOBS)

test: build  ## build everything and run all tests
	@scripts/setup_browser
	@scripts/setup_python_tests $(PYTHON)
	@$(CTEST) --preset $(PRESET) -j $(JOBS)
	@test $(PRESET) != release || $(MAKE) --no-print-directory fuzz-quick

# The demo trains on the CPU, so a first demo does not wait for the CUDA kernels; `make` and
# `make test` build them wherever nvcc is.
demo: setup  ## train DIFF and a Transformer of equal size, three seeds each; demo/report.html
	@test -f build/release/build.ninja || \
	  $(CMAKE) --preset release -DDIFFATTN_PYTHON=$(PYTHON) -DDIFFATTN_CUDA=OFF
	@$(CMAKE) --build --preset release -j $(JOBS) --target diffattn_program
	@build/release/diffattn info
	@build/release/diffattn compare --task summarize --seeds 11,12,13 --set train.steps=800 \
	  --keep-models --out demo

python: configure  ## install the Python package and the program into the Python that has torch
	@$(CMAKE) --build --preset release -j $(JOBS) --target python_package
	@tools/install_python $(PYTHON) build/release

# TORCHES="2.11 2.13" puts libraries for several torch versions into one wheel; OPERATORS="2.12" adds versions
# for which the wheel has only the operators.
wheel: setup  ## make a wheel in dist/ for the torch of the setup, or for TORCHES="2.11 2.13 ..."
	@CUDA=$(CUDA) JOBS=$(JOBS) tools/make_wheel $(CMAKE) $(PYTHON) "$(TORCHES)" "$(OPERATORS)"

bench: build  ## time the fused kernels beside every other route on this machine
	@build/release/diffattn bench attention

check:  ## layers, formatting, ruff and clang-tidy; needs no build
	@scripts/setup_check
	@failed=0; \
	python3 tools/check_layers.py || failed=1; \
	tools/check_format || failed=1; \
	.venv/bin/ruff check python tests tools benchmarks viewer scripts scripts/make_corpus || failed=1; \
	tools/check_tidy.py || failed=1; \
	exit $$failed

format:  ## rewrite sources with clang-format
	@scripts/setup_check
	@tools/check_format --fix

docs:  ## API pages of include/diffattn by Doxygen: build/docs/html/index.html
	@scripts/setup_docs
	@tools/make_docs

asan: setup  ## everything without torch under AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory test PRESET=asan

asan-torch: setup  ## everything with torch under AddressSanitizer and UBSan
	@test build/asan-torch/build.ninja -nt $(TOOLCHAIN) || \
	  $(CMAKE) --preset asan-torch -DDIFFATTN_PYTHON=$(PYTHON)
	@$(CMAKE) --build --preset asan-torch -j $(JOBS)
	@$(CTEST) --preset asan-torch -j $(JOBS)

tsan: setup  ## everything without torch under ThreadSanitizer
	@$(MAKE) --no-print-directory test PRESET=tsan

fuzz: fuzz-build  ## give arbitrary bytes to every parser and converter, FUZZ_SECONDS (60) each
	@tools/fuzz.py --seconds $(FUZZ_SECONDS) --jobs $(JOBS)

# Part of `make test`. Without clang the tests have only replayed the inputs of tests/fuzz.
.PHONY: fuzz-quick fuzz-build
fuzz-quick:
	@scripts/setup_fuzz || { echo 'fuzz: left out, since clang is missing'; exit 0; } && \
	  $(MAKE) --no-print-directory fuzz FUZZ_SECONDS=8

fuzz-build: setup
	@scripts/setup_fuzz
	@test build/fuzz/build.ninja -nt $(TOOLCHAIN) || $(CMAKE) --preset fuzz -DDIFFATTN_PYTHON=$(PYTHON)
	@$(CMAKE) --build --preset fuzz -j $(JOBS)

# TORCH=ON measures src/train and apps too. The tests of the program then take most of the time.
COVERED_TARGETS = io_tests tokenizer_tests convert_tests data_tests fuzz_targets \
  $(if $(filter ON,$(TORCH)),train_tests serve_tests diffattn_program diffattn_converter diffattn_python \
    allocation_limit short_network)
COVERED_TESTS = ^(fuzz$(if $(filter ON,$(TORCH)),|train|program|serve|python[.]distributed))($$|[.])
coverage: setup  ## share of the lines of src/io and src/convert that their tests run
	@$(CMAKE) --preset coverage -DDIFFATTN_TORCH=$(or $(TORCH),OFF) -DDIFFATTN_PYTHON=$(PYTHON)
	@$(CMAKE) --build --preset coverage -j $(JOBS) --target $(COVERED_TARGETS)
	@tools/coverage.py --reset
	@for tests in io_tests tokenizer_tests convert_tests data_tests; do \
	  DIFFATTN_TEST_SCALE=0.1 build/coverage/$$tests --gtest_brief=1 || exit 1; done
	@$(CTEST) --test-dir build/coverage -j $(JOBS) --output-on-failure -R '$(COVERED_TESTS)'
	@tools/coverage.py --minimum 90 src/io src/convert $(if $(filter ON,$(TORCH)),src/train apps)

# Run it before a release. The sanitizers keep a tenth of the random cases: CMakePresets.json.
test-long: setup  ## before a release: analyser, more cases, wheels for all torches, sanitizers, coverage
	@$(MAKE) --no-print-directory check
	@tools/check_tidy.py --thorough
	@scripts/setup_python_tests $(PYTHON) long
	@DIFFATTN_TEST_SCALE=$(LONG_SCALE) DIFFATTN_TEST_KILLS=$(LONG_KILLS) DIFFATTN_TEST_FAULTS=all \
	  $(MAKE) --no-print-directory test PRESET=release
	@tests/soak/soak.py build/release/diffattn
	@DIFFATTN_PROGRAM=$(CURDIR)/build/release/diffattn DIFFATTN_TEST_SERVE_REQUESTS=10000 \
	  $(PYTHON) tests/serve/load_test.py
	@DIFFATTN_PROGRAM=$(CURDIR)/build/release/diffattn DIFFATTN_TEST_FUZZ_REQUESTS=100000 \
	  $(PYTHON) tests/serve/fuzz_test.py
	@PYTHONPATH=$(CURDIR)/python DIFFATTN_LIBRARY=$(CURDIR)/build/release/libdiffattn.so \
	  DIFFATTN_PROGRAM=$(CURDIR)/build/release/diffattn $(PYTHON) tests/python/two_hosts_test.py
	@$(MAKE) --no-print-directory wheel TORCHES="$(or $(TORCHES),2.11 2.13 2.15)"
	@tools/test_wheels
	@tools/test_source_install
	@$(MAKE) --no-print-directory asan
	@$(MAKE) --no-print-directory asan-torch
	@$(MAKE) --no-print-directory tsan
	@$(MAKE) --no-print-directory coverage TORCH=ON
	@$(MAKE) --no-print-directory fuzz-build
	@tools/fuzz.py --inputs $(LONG_INPUTS) --jobs $(JOBS)

clean:  ## remove what was built (keeps .venv)
	rm -rf build

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## *(.*)/  make \1\t\2/' | expand -t 18

.PHONY: configure
configure: setup
	@{ test build/$(PRESET)/build.ninja -nt $(TOOLCHAIN) && \
	   ! { test $(PRESET) = release && grep -q '^DIFFATTN_CUDA:STRING=OFF' build/release/CMakeCache.txt; }; } || \
	  $(CMAKE) --preset $(PRESET) -DDIFFATTN_PYTHON=$(PYTHON) \
	    $(if $(filter release,$(PRESET)),-DDIFFATTN_CUDA=$(CUDA))

setup:
	@scripts/setup $(TOOLCHAIN)

# Made by scripts/setup; make reads it again after the first run.
$(TOOLCHAIN): scripts/setup
	@scripts/setup $(TOOLCHAIN)
