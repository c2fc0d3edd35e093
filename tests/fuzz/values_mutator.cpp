// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return diffattn::fuzz::mutate_document(data, size, max_size, seed, diffattn::fuzz::mutate_value);
}
