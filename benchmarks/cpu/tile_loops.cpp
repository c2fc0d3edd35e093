// SPDX-License-Identifier: Apache-2.0
//
// CMake compiles this file once for each instruction set: DIFFATTN_ISA is its name and
// DIFFATTN_ISA_HEADER its isa.h.

#include "benchmarks/cpu/tile_loops.h"

#include DIFFATTN_ISA_HEADER

namespace diffattn::cpu::DIFFATTN_ISA {
namespace {

constexpr int64_t kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;
constexpr int64_t kMaxWidth = 256;

/// Returns zeros, so that sums stay 0 and do not change the speed. Each type T has its own array.
template <class T>
T* zeros() {
  alignas(64) static T memory[kMaxWidth * (kRows > kCols ? kRows : kCols)];
  return memory;
}

/// Keeps the compiler from moving work out of a loop.
void touch(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

int64_t product(int64_t loops, int64_t steps) {
  const typename Isa::Session session{};
  static_cast<void>(session);
  using Operand = typename Isa::Operand;
  struct Left {
    Operand x;
  };
  struct Right {
    Operand x;
  };
  Operand* a = &zeros<Left>()->x;
  Operand* b = &zeros<Right>()->x;
  float* out = zeros<float>();
  for (int64_t i = 0; i < loops; ++i) {
    typename Isa::Tile t;
    t.zero();
    t.multiply_packed(a, b, steps, b);
    t.store(out, kCols);
    touch(out);
  }
  return loops * kRows * kCols * 2 * Isa::kPair * steps;
}

int64_t exponentials(int64_t loops) {
  constexpr int64_t kCount = 1024;
  float* x = zeros<float>();
  for (int64_t i = 0; i < loops; ++i) {
    for (int64_t j = 0; j < kCount; j += kLanes) {
      Isa::store(x + j, Isa::sub(Isa::exp2(Isa::load(x + j)), Isa::set1(1.0f)));  // back to 0
    }
    touch(x);
  }
  return loops * kCount;
}

int64_t transpose(int64_t loops, int64_t width) {
  constexpr Dtype kDtype = Isa::kPair == 2 ? Dtype::kBFloat16 : Dtype::kFloat32;
  struct In {
    float x;
  };
  const Matrix in{&zeros<In>()->x, width, kDtype, kCols, width};
  float* out = zeros<float>();
  for (int64_t i = 0; i < loops; ++i) {
    Isa::Pack::transposed(&in, 0, kCols, 0, out);
    touch(out);
  }
  return loops * kCols * width * (4 / Isa::kPair);
}

#define DIFFATTN_TEXT(x) #x
#define DIFFATTN_NAME(x) DIFFATTN_TEXT(x)
constexpr bench::TileLoops kLoops{
    DIFFATTN_NAME(DIFFATTN_ISA), kRows, kCols, product, exponentials, transpose};

}  // namespace

const bench::TileLoops& tile_loops() { return kLoops; }

}  // namespace diffattn::cpu::DIFFATTN_ISA
