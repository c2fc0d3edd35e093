// SPDX-License-Identifier: Apache-2.0
//
// A paged KV cache gives the same bits as a contiguous one, for every table.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "diffattn/kernels/cuda.h"
#include "kernels/token_step.h"
#include "tests/kernels/cuda/backend.h"

namespace diffattn::testing {
namespace {

using Elements = std::vector<uint16_t>;

/// One query per sequence against caches of different lengths.
struct PagedCase {
  int64_t batch = 3, heads = 4, kv_heads = 2, seq_k = 1280, head_dim = 64, value_dim = 128;
  int64_t page_size = 64;
  Window window = {};

  int64_t width() const { return 2 * head_dim + value_dim; }
  int64_t pages() const { return seq_k / page_size; }
  int64_t page_elements() const { return kv_heads * page_size * width(); }
};

/// Device memory with a copy of host data.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& data) : size_(data.size()) {
    check_cuda(cudaMalloc(&memory_, std::max<size_t>(1, size_ * sizeof(T))));
    check_cuda(cudaMemcpy(memory_, data.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data() const { return static_cast<T*>(memory_); }
  std::vector<T> host() const {
    std::vector<T> data(size_);
    check_cuda(cudaMemcpy(data.data(), memory_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return data;
  }

 private:
  size_t size_;
  void* memory_ = nullptr;
};

/// Random bfloat16 numbers between -2 and 2.
Elements random_elements(int64_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
  Elements elements(static_cast<size_t>(count));
  for (uint16_t& x : elements) {
    const float value = uniform(random);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    x = static_cast<uint16_t>(bits >> 16);
  }
  return elements;
}

/// Runs decoding on pages, which `table` lists, and returns the result.
Elements run(const PagedCase& c, const Elements& q, const Elements& pool,
             const std::vector<int32_t>& table, bool step) {
  const OnDevice<uint16_t> q_device(q), pool_device(pool);
  const OnDevice<int32_t> table_device(table);
  const OnDevice<int32_t> lengths({static_cast<int32_t>(c.seq_k), 700, 1});
  const OnDevice<float> lambda({0.3f});
  const OnDevice<uint16_t> out(Elements(static_cast<size_t>(c.batch * c.heads * c.value_dim)));
  ForwardParams p;
  p.dtype = Dtype::kBFloat16;
  p.batch = c.batch, p.heads = c.heads, p.kv_heads = c.kv_heads;
  p.seq_q = 1, p.seq_k = c.seq_k, p.head_dim = c.head_dim, p.value_dim = c.value_dim;
  const int64_t q_width = 2 * c.heads * c.head_dim;
  p.q1 = {q_device.data(), q_width, q_width, c.head_dim};
  p.q2 = {q_device.data() + c.heads * c.head_dim, q_width, q_width, c.head_dim};
  const auto view = [&](int64_t column) {
    return View<const void>{pool_device.data() + column, c.page_elements(), c.width(),
                            c.page_size * c.width()};
  };
  p.k1 = view(0), p.k2 = view(c.head_dim), p.v = view(2 * c.head_dim);
  p.lambda = {lambda.data(), 0, 0, 0};
  p.scale = p.scale2 = 0.125;
  p.causal = true;
  p.window = c.window;
  p.key_lengths = lengths.data();
  p.align_to_key_lengths = true;
  p.pages = {table_device.data(), c.pages(), c.page_size};
  p.epilogue = {.norm = true, .norm_eps = 1e-5, .norm_weight = nullptr, .out_scale = 0.8};
  p.out = {out.data(), c.heads * c.value_dim, c.heads * c.value_dim, c.value_dim};
  const size_t bytes =
      step ? cuda::token::attend_workspace_bytes(p) : cuda::forward_workspace_bytes(p);
  const OnDevice<char> workspace{std::vector<char>(bytes)};
  if (step) {
    cuda::token::attend(p, workspace.data(), nullptr);
  } else {
    cuda::forward(p, workspace.data(), nullptr);
  }
  check_cuda(cudaDeviceSynchronize());
  return out.host();
}

class CudaPages : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (device_capability() < 80) {
      GTEST_SKIP() << "skipped: no GPU of compute capability 8.0 or later";
    }
  }
};

TEST_P(CudaPages, EveryTableGivesTheSameBits) {
  std::mt19937 random(3);
  for (const Window window : {Window{}, Window::last(300)}) {
    for (const int64_t page_size : {16, 64, 256}) {
      PagedCase c;
      c.window = window;
      c.page_size = page_size;
      const int64_t count = c.batch * c.pages();
      const Elements q = random_elements(c.batch * 2 * c.heads * c.head_dim, random);
      const Elements pool = random_elements(count * c.page_elements(), random);
      std::vector<int32_t> table(static_cast<size_t>(count));
      std::iota(table.begin(), table.end(), 0);  // pages in order: a contiguous cache
      const Elements contiguous = run(c, q, pool, table, GetParam());
      EXPECT_GT(std::ranges::count_if(contiguous, [](uint16_t x) { return x != 0; }), 0);
      for (int round = 0; round < 3; ++round) {
        std::ranges::shuffle(table, random);
        Elements moved(pool.size());
        for (int64_t page = 0; page < count; ++page) {
          std::copy_n(pool.begin() + page * c.page_elements(), c.page_elements(),
                      moved.begin() + table[static_cast<size_t>(page)] * c.page_elements());
        }
        EXPECT_EQ(run(c, q, moved, table, GetParam()), contiguous)
            << "pages of " << page_size << ", window " << window.left;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaPages, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "step" : "forward"; });

}  // namespace
}  // namespace diffattn::testing
