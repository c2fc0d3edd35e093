// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn {

/// While it lives, linear() and linears() of this thread see every row x of their input rounded to
/// integers of `bits` bits: s round(x / s), s = max |x| / (2^(bits - 1) - 1). It simulates
/// quantised activations without gradients; fused training kernels do not read it. 0 bits: no
/// rounding.
class RoundedInputs {
 public:
  explicit RoundedInputs(int64_t bits);
  ~RoundedInputs();
  RoundedInputs(const RoundedInputs&) = delete;
  RoundedInputs& operator=(const RoundedInputs&) = delete;

 private:
  int64_t before_;
};

}  // namespace diffattn
