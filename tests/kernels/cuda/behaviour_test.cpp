// SPDX-License-Identifier: Apache-2.0
//
// Promises beyond accuracy: hidden entries do not leak, every run gives the same bits, calls can be
// captured in a CUDA graph, and errors name what was wrong.

#include <bit>
#include <cmath>
#include <cstring>

#include "diffattn/kernels/cuda.h"
#include "diffattn/kernels/error.h"
#include "tests/kernels/cuda/backend.h"
#include "tests/support/compare.h"

namespace diffattn::testing {
namespace {

class CudaBehaviour : public ::testing::TestWithParam<Target> {
 protected:
  const Backend& backend() const { return *GetParam().backend; }

  static Spec causal_spec() {
    Spec spec;
    spec.seed = 5;
    spec.heads = 2;
    spec.seq_q = spec.seq_k = 200;
    spec.head_dim = 64;
    spec.value_dim = 128;
    spec.scale = spec.scale2 = 0.125;
    spec.causal = true;
    return spec;
  }
};

/// Expects values [begin, end) to agree up to rounding errors. Their bits may differ, because bad
/// values elsewhere may cause other kernels to compute them.
void expect_untouched(const std::vector<double>& got, const std::vector<double>& want,
                      int64_t begin, int64_t end) {
  double size = 0.0;
  for (int64_t i = begin; i < end; ++i)
    size += std::abs(want[i]) / static_cast<double>(end - begin);
  for (int64_t i = begin; i < end; ++i) {
    ASSERT_NEAR(got[i], want[i], 0.02 * (std::abs(want[i]) + size)) << "element " << i;
  }
}

TEST_P(CudaBehaviour, UnseenColumnsDoNotLeak) {
  const Spec spec = causal_spec();
  Case c(spec, GetParam().dtype);
  const std::vector<double> clean = run_forward(backend(), c).out;
  const std::vector<double> clean_dq1 = run_backward(backend(), c).dq1;
  constexpr int64_t kFirstBad = 70;  // in the middle of a tile
  for (int64_t n = kFirstBad; n < spec.seq_k; ++n) {
    c.values.v[n * spec.value_dim + n % spec.value_dim] = n % 2 == 0 ? NAN : INFINITY;
    c.values.k1[n * spec.head_dim + 3] = NAN;
  }
  c.store();
  const std::vector<double> out = run_forward(backend(), c).out;
  const int64_t row = spec.heads * spec.value_dim;
  expect_untouched(out, clean, 0, kFirstBad * row);
  for (int64_t m = kFirstBad; m < spec.seq_q; ++m) ASSERT_TRUE(std::isnan(out[m * row])) << m;
  const std::vector<double> dq1 = run_backward(backend(), c).dq1;
  expect_untouched(dq1, clean_dq1, 0, kFirstBad * spec.heads * spec.head_dim);
}

TEST_P(CudaBehaviour, BlindRowsDoNotLeak) {
  const Spec spec = causal_spec();
  Case c(spec, GetParam().dtype);
  const std::vector<double> clean = run_backward(backend(), c).dk1;
  constexpr int64_t kEndBad = 130;  // rows m < 130 see no key n >= 130
  for (int64_t i = 0; i < kEndBad * spec.heads * spec.head_dim; ++i) c.values.q1[i] = NAN;
  c.store();
  const std::vector<double> dk1 = run_backward(backend(), c).dk1;
  expect_untouched(dk1, clean, kEndBad * spec.head_dim, spec.seq_k * spec.head_dim);
}

TEST_P(CudaBehaviour, SameBitsEveryTime) {
  Spec spec = causal_spec();
  spec.batch = 2;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.norm = true;
  spec.lambda_shape = LambdaShape::kScalar;
  const Case c(spec, GetParam().dtype);
  const std::vector<double> out = run_forward(backend(), c).out;
  const BackwardResult first = run_backward(backend(), c);
  for (int64_t i = 0; i < scaled(20); ++i) {
    ASSERT_EQ(run_forward(backend(), c).out, out);
    const BackwardResult again = run_backward(backend(), c);
    for (const NamedGradient& gradient : kGradients) {
      ASSERT_EQ(again.*gradient.values, first.*gradient.values) << gradient.name;
    }
  }
}

/// The outputs of one forward: o and o2 [rows, H, Dv] and the bytes with their rounding errors.
struct SavedRows {
  Tensor out, o, o2, lse1, lse2;
  Memory o_rest, o2_rest;
  ForwardParams params;

  explicit SavedRows(const Case& c) : params(c.forward()) {
    params.max_capability = capability_limit();
    const auto output = [&](Tensor& tensor, Dtype dtype, int64_t width) {
      tensor = Tensor(dtype, c.query_dims(width), Layout::kBmhd);
      tensor.make_output();
      return tensor.view();
    };
    params.out = output(out, c.dtype, c.spec.value_dim);
    params.o = output(o, c.dtype, c.spec.value_dim);
    params.o2 = output(o2, c.dtype, c.spec.value_dim);
    params.lse1 = output(lse1, Dtype::kFloat32, 1);
    params.lse2 = output(lse2, Dtype::kFloat32, 1);
    const auto bytes = [&](Memory& memory, const View<void>& like) {
      memory = Memory(c.query_dims(c.spec.value_dim).count());
      return View<void>{memory.data(), like.batch_stride, like.seq_stride, like.head_stride};
    };
    params.o_rest = bytes(o_rest, params.o);
    params.o2_rest = bytes(o2_rest, params.o2);
    forget_rests();
  }

  void forget_rests() {
    constexpr int kWrong = 0x55;
    std::memset(o_rest.data(), kWrong, static_cast<size_t>(o_rest.bytes()));
    std::memset(o2_rest.data(), kWrong, static_cast<size_t>(o2_rest.bytes()));
  }

  /// Returns o or o2 with its rounding errors added, which are in 1/256 of a unit in the last
  /// place.
  static std::vector<double> whole(const Tensor& rounded, const Memory& rest) {
    const int unit = rounded.dtype() == Dtype::kBFloat16 ? 1 << 8 : 1 << 5;
    std::vector<double> values = rounded.get();
    for (size_t i = 0; i < values.size(); ++i) {
      const auto word = std::bit_cast<int32_t>(static_cast<float>(values[i]));
      values[i] = std::bit_cast<float>(word + unit * static_cast<int8_t>(rest.data()[i]));
    }
    return values;
  }
};

class CudaRests : public CudaBehaviour {};

/// With equal scores over 128 columns and lambda = 1/2, every weight is a power of two. O is half
/// the mean of v and known to all bits of a float: o plus its byte must give it back.
TEST_P(CudaRests, RestsHoldWhatRoundingLost) {
  constexpr int64_t kWidths[][2] = {{64, 128}, {64, 64}, {128, 128}, {128, 256}, {40, 24}};
  for (const auto& [head_dim, value_dim] : kWidths) {
    Spec spec = causal_spec();
    spec.causal = false;
    spec.head_dim = head_dim, spec.value_dim = value_dim;
    spec.seq_q = 70, spec.seq_k = 128;
    spec.logit_spread = 0.0;
    spec.lambda_low = spec.lambda_high = 0.5;
    const Case c(spec, GetParam().dtype);
    SavedRows saved(c);
    const auto check = [&](const char* name, const Tensor& rounded, const Memory& rest,
                           double weight) {
      const std::vector<double> got = SavedRows::whole(rounded, rest);
      for (size_t i = 0; i < got.size(); ++i) {
        double mean = 0.0, size = 0.0;
        for (int64_t n = 0; n < spec.seq_k; ++n) {
          const double v = c.values.v[n * value_dim + static_cast<int64_t>(i) % value_dim];
          mean += v / 128.0, size += std::abs(v) / 128.0;
        }
        // Exactly half way between two numbers, the byte of the sm90 kernels is for the lower one.
        const double unit = ulp(c.dtype, weight * mean);
        if (std::fmod(std::abs(weight * mean), unit) == 0.5 * unit) continue;
        ASSERT_NEAR(got[i], weight * mean, ulp(c.dtype, weight * mean) / 200.0 + 0x1p-20 * size)
            << name << " " << i << ", " << cuda::forward_route(saved.params) << "; "
            << c.describe();
      }
    };
    const Workspace workspace(cuda::forward_workspace_bytes(saved.params));
    cuda::forward(saved.params, workspace.data(), nullptr);
    check_cuda(cudaDeviceSynchronize());
    check("o", saved.o, saved.o_rest, 0.5);
    check("o2", saved.o2, saved.o2_rest, 1.0);
    saved.forget_rests();
    cuda::recompute(saved.params, workspace.data(), nullptr);
    check_cuda(cudaDeviceSynchronize());
    check("o again", saved.o, saved.o_rest, 0.5);
  }
}

/// The bits of a batch entry do not depend on the rest of the batch.
TEST_P(CudaBehaviour, SameBitsAtEveryPlaceInABatch) {
  Spec spec = causal_spec();
  spec.batch = 3;
  const Case whole(spec, GetParam().dtype);
  const std::vector<double> all = run_forward(backend(), whole).out;
  const auto part = [&](const std::vector<double>& values, int64_t b) {
    const auto size = static_cast<int64_t>(values.size()) / 3;
    return std::vector<double>(values.begin() + b * size, values.begin() + (b + 1) * size);
  };
  spec.batch = 1;
  for (int64_t b = 0; b < 3; ++b) {
    Case one(spec, GetParam().dtype);
    for (const auto member : {&Values::q1, &Values::q2, &Values::k1, &Values::k2, &Values::v}) {
      one.values.*member = part(whole.values.*member, b);
    }
    one.values.lambda = whole.values.lambda;
    one.store();
    ASSERT_EQ(run_forward(backend(), one).out, part(all, b)) << "batch entry " << b;
  }
}

TEST_P(CudaBehaviour, CanBeCapturedInAGraph) {
  const Case c(causal_spec(), GetParam().dtype);
  const std::vector<double> expected = run_forward(backend(), c).out;
  Tensor out(GetParam().dtype, c.query_dims(c.spec.value_dim), Layout::kBmhd);
  out.make_output();
  ForwardParams params = c.forward();
  params.out = out.view();
  params.max_capability = capability_limit();
  const Workspace workspace(cuda::forward_workspace_bytes(params));
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cuda::forward(params, workspace.data(), stream);
  check_cuda(cudaStreamEndCapture(stream, &graph));
  check_cuda(cudaGraphInstantiate(&executable, graph, 0));
  check_cuda(cudaGraphLaunch(executable, stream));
  check_cuda(cudaStreamSynchronize(stream));
  EXPECT_EQ(out.get(), expected);
  check_cuda(cudaGraphExecDestroy(executable));
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamDestroy(stream));
}

/// Calls f, which must throw an Error whose text contains `part`.
template <class F>
void expect_error(const std::string& part, F f) {
  try {
    f();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_P(CudaBehaviour, ErrorsNameWhatIsMissing) {
  const Case c(causal_spec(), GetParam().dtype);
  BackwardParams params = c.backward();
  expect_error("lse1", [&] { cuda::backward(params, nullptr, nullptr); });
  params.lse1 = params.lse2 = params.lambda;
  expect_error("workspace", [&] { cuda::backward(params, nullptr, nullptr); });
  Tensor out(GetParam().dtype, c.query_dims(c.spec.value_dim), Layout::kBmhd);
  ForwardParams wide = c.forward();
  wide.out = out.view();
  wide.value_dim = 257;
  expect_error("widths from 1 to 256", [&] { cuda::forward(wide, nullptr); });
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaBehaviour);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaBehaviour, ::testing::ValuesIn(cuda_targets()), target_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaRests);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaRests, ::testing::ValuesIn(half_targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
