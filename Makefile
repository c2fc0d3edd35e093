# SPDX-License-Identifier: Apache-2.0
# Every target first runs scripts/setup, which installs what is missing and is quick when nothing is.
.DEFAULT_GOAL := build
.PHONY: build test demo bench python format check asan tsan clean help setup

PRESET ?= release
CUDA ?= AUTO
TOOLCHAIN := build/toolchain.mk
ifneq ($(filter-out clean help,$(or $(MAKECMDGOALS),build)),)
-include $(TOOLCHAIN)
endif
JOBS ?= $(shell nproc)

build: configure  ## build build/release/diffattn
	@$(CMAKE) --build --preset $(PRESET) -j $(JOBS)

test: build  ## build everything and run all tests
	@scripts/setup_browser
	@scripts/setup_python_tests $(PYTHON)
	@$(CTEST) --preset $(PRESET) -j $(JOBS)

# A first demo on a machine without an NVIDIA driver does not wait for the CUDA kernels; `make` and
# `make test` build them wherever nvcc is.
demo: setup  ## train DIFF and a Transformer of equal size side by side; a table and demo/report.html
	@test -f build/release/build.ninja || $(CMAKE) --preset release -DDIFFATTN_PYTHON=$(PYTHON) \
	  $(if $(wildcard /proc/driver/nvidia/version),,-DDIFFATTN_CUDA=OFF)
	@$(CMAKE) --build --preset release -j $(JOBS) --target diffattn_program
	@build/release/diffattn info
	@build/release/diffattn compare --task needle --keep-models --out demo

python: configure  ## install the Python package and the program into the Python that has torch
	@$(CMAKE) --build --preset release -j $(JOBS) --target diffattn diffattn_program
	@tools/install_python $(PYTHON) build/release

bench: build  ## time the fused kernels beside every other route on this machine
	@build/release/diffattn bench attention

check: setup  ## formatting and layers
	@$(PYTHON) tools/check_layers.py
	@tools/check_format

format: setup  ## rewrite sources with clang-format
	@tools/check_format --fix

asan: setup  ## everything without torch under AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory test PRESET=asan

tsan: setup  ## everything without torch under ThreadSanitizer
	@$(MAKE) --no-print-directory test PRESET=tsan

clean:  ## remove what was built (keeps .venv)
	rm -rf build

help:  ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## *(.*)/  make \1\t\2/' | expand -t 18

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
