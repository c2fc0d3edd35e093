// SPDX-License-Identifier: Apache-2.0
//
// What is promised beyond the numbers: unseen entries do not leak, equal bits in every run, calls
// can be captured in a graph, and errors say what was wrong.

#include <cmath>

#include "backend.h"
#include "diffattn/kernels/cuda.h"
#include "diffattn/kernels/error.h"
#include "support/compare.h"

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

/// Values [begin, end) must agree but for roundings: bad values elsewhere may have other kernels
/// compute them.
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
  constexpr int64_t kEndBad = 130;  // rows before it see no key from it on
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

/// Bits do not depend on what else is in the batch.
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

}  // namespace
}  // namespace diffattn::testing
