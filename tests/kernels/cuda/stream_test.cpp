// SPDX-License-Identifier: Apache-2.0
//
// Every call only enqueues work on its stream: it can be captured in a CUDA graph, runs after the
// earlier work of that stream, and does not interfere with other streams. Memory traffic of other
// streams does not change its bits.

#include <stdexcept>
#include <utility>

#include "diffattn/kernels/cuda.h"
#include "tests/kernels/cuda/backend.h"

namespace diffattn::testing {
namespace {

constexpr int64_t kRepeats = 1000;  // per shape

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { check_cuda(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Every operation on one case, with all outputs and workspaces in one block of device memory.
class DeviceCall {
 public:
  explicit DeviceCall(const Case& c) : c_(c), block_(kBytes) {
    f_ = c.forward();
    f_.max_capability = capability_limit();
    const int64_t rows = c.rows_q(), keys = c.rows_k(), d = c.spec.head_dim;
    f_.out = take(rows, c.spec.heads, c.spec.value_dim, c.dtype);
    f_.lse1 = take(rows, c.spec.heads, 1, c.accumulator);
    f_.lse2 = take(rows, c.spec.heads, 1, c.accumulator);
    g_ = c.backward();
    g_.max_capability = capability_limit();
    g_.lse1 = input(f_.lse1), g_.lse2 = input(f_.lse2);
    g_.dq1 = take(rows, c.spec.heads, d, c.dtype);
    g_.dq2 = take(rows, c.spec.heads, d, c.dtype);
    g_.dk1 = take(keys, c.spec.kv_heads, d, c.dtype);
    g_.dk2 = take(keys, c.spec.kv_heads, d, c.dtype);
    g_.dv = take(keys, c.spec.kv_heads, c.spec.value_dim, c.dtype);
    g_.dlambda = {take(1, 1, 1, c.accumulator).data, 0, 0, 0};
    static_cast<Problem&>(stats_) = c.problem();
    stats_.stats = take(rows, c.spec.heads, kStatCount, c.accumulator);
    static_cast<Problem&>(dstats_) = c.problem();
    dstats_.dstats = input(stats_.stats);  // any numbers will do
    dstats_.dq1 = take(rows, c.spec.heads, d, c.dtype);
    dstats_.dk2 = take(keys, c.spec.kv_heads, d, c.dtype);
    dstats_.dlambda = {take(1, 1, 1, c.accumulator).data, 0, 0, 0};
    static_cast<Problem&>(map_) = c.problem();
    map_.row_end = c.spec.seq_q, map_.col_end = c.spec.seq_k;
    map_.rows = 3, map_.cols = 7;
    map_.map = take(c.spec.batch, c.spec.heads, 3 * 3 * 7, c.accumulator).data;
    results_ = used_;
    forward_memory_ = take_bytes(cuda::forward_workspace_bytes(f_));
    backward_memory_ = take_bytes(cuda::backward_workspace_bytes(g_));
    stats_memory_ = take_bytes(cuda::stats_backward_workspace_bytes(dstats_));
    map_memory_ = take_bytes(cuda::map_workspace_bytes(map_));
    if (used_ > kBytes) throw std::runtime_error("the block is too small");
  }

  void run(cudaStream_t stream) const {
    const bool split = cuda::forward_workspace_bytes(f_) > 0;
    cuda::forward(f_, split ? forward_memory_ : nullptr, stream);
    cuda::backward(g_, backward_memory_, stream);
    cuda::stats(stats_, stream);
    cuda::stats_backward(dstats_, stats_memory_, stream);
    cuda::map(map_, map_memory_, stream);
  }

  /// Returns the bytes of every output.
  std::vector<char> results() const {
    std::vector<char> bytes(results_);
    check_cuda(cudaMemcpy(bytes.data(), block_.data(), results_, cudaMemcpyDeviceToHost));
    return bytes;
  }
  void poison() const { check_cuda(cudaMemset(block_.data(), 0xff, results_)); }

  ForwardParams& forward_params() { return f_; }

 private:
  static constexpr size_t kBytes = 32 << 20;

  void* take_bytes(size_t bytes) {
    void* const piece = static_cast<char*>(block_.data()) + used_;
    used_ += (bytes + 255) / 256 * 256;
    return piece;
  }
  View<void> take(int64_t rows, int64_t heads, int64_t width, Dtype dtype) {
    void* const data = take_bytes(static_cast<size_t>(rows * heads * width * size_of(dtype)));
    const int64_t batch_stride = c_.spec.varlen ? 0 : rows / c_.spec.batch * heads * width;
    return {data, batch_stride, heads * width, width};
  }
  static View<const void> input(const View<void>& view) {
    return {view.data, view.batch_stride, view.seq_stride, view.head_stride};
  }

  const Case& c_;
  const Workspace block_;
  size_t used_ = 0, results_ = 0;
  ForwardParams f_;
  BackwardParams g_;
  StatsParams stats_;
  StatsBackwardParams dstats_;
  MapParams map_;
  void *forward_memory_, *backward_memory_, *stats_memory_, *map_memory_;
};

class CudaStream : public ::testing::TestWithParam<Target> {
 protected:
  /// Returns a spec for several tiles of rows and keys, or for decoding if rows are few and keys
  /// many.
  static Spec spec(uint64_t seed, int64_t seq_q, int64_t seq_k) {
    Spec spec;
    spec.seed = seed;
    spec.batch = 2;
    spec.heads = 2;
    spec.seq_q = seq_q;
    spec.seq_k = seq_k;
    spec.head_dim = 64;
    spec.value_dim = 128;
    spec.scale = spec.scale2 = 0.125;
    spec.causal = true;
    spec.norm = true;
    spec.lambda_shape = LambdaShape::kScalar;
    return spec;
  }

  std::vector<char> expected(const DeviceCall& call) {
    call.poison();
    call.run(nullptr);
    check_cuda(cudaDeviceSynchronize());
    return call.results();
  }
};

TEST_P(CudaStream, EveryOperationCanBeCaptured) {
  for (const auto& [seq_q, seq_k] : {std::pair<int64_t, int64_t>{150, 170}, {3, 1100}}) {
    const Case c(spec(1, seq_q, seq_k), GetParam().dtype);
    const DeviceCall call(c);
    const std::vector<char> want = expected(call);
    call.poison();
    check_cuda(cudaDeviceSynchronize());
    const Stream stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    call.run(stream);
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 2; ++replay) {
      check_cuda(cudaGraphLaunch(executable, stream));
      stream.wait();
      EXPECT_EQ(call.results(), want) << seq_q << " rows, replay " << replay;
    }
    check_cuda(cudaGraphExecDestroy(executable));
    check_cuda(cudaGraphDestroy(graph));
  }
}

/// Two streams that run at the same time do not interfere, and each sees its own earlier work.
TEST_P(CudaStream, StreamsAreKeptApart) {
  const Case first(spec(2, 150, 170), GetParam().dtype), second(spec(3, 90, 200), GetParam().dtype);
  DeviceCall one(first), two(second);
  const std::vector<char> want_one = expected(one), want_two = expected(two);
  // q1 arrives late, after a long copy on the same stream.
  constexpr size_t kDelay = 1u << 30;
  const Workspace from(kDelay), to(kDelay), q1(first.values.q1.size() * size_of(first.dtype));
  const View<const void> late = one.forward_params().q1;
  one.forward_params().q1 = {q1.data(), late.batch_stride, late.seq_stride, late.head_stride};
  const Stream a, b;
  one.poison(), two.poison();
  check_cuda(cudaDeviceSynchronize());
  check_cuda(cudaMemcpyAsync(to.data(), from.data(), kDelay, cudaMemcpyDeviceToDevice, a));
  check_cuda(cudaMemcpyAsync(q1.data(), late.data, first.values.q1.size() * size_of(first.dtype),
                             cudaMemcpyDefault, a));
  one.run(a);
  two.run(b);
  a.wait(), b.wait();
  EXPECT_EQ(one.results(), want_one);
  EXPECT_EQ(two.results(), want_two);
}

TEST_P(CudaStream, SameBitsUnderMemoryLoad) {
  constexpr size_t kLoad = 1u << 30;
  const Workspace from(kLoad), to(kLoad);
  const Stream load, stream;
  for (const auto& [seq_q, seq_k] : {std::pair<int64_t, int64_t>{150, 170}, {3, 1100}}) {
    const Case c(spec(4, seq_q, seq_k), GetParam().dtype);
    const DeviceCall call(c);
    const std::vector<char> want = expected(call);
    for (int64_t i = 0; i < scaled(kRepeats); ++i) {
      if (cudaStreamQuery(load) == cudaSuccess) {
        check_cuda(cudaMemcpyAsync(to.data(), from.data(), kLoad, cudaMemcpyDeviceToDevice, load));
      }
      call.run(stream);
      stream.wait();
      ASSERT_EQ(call.results(), want) << "repeat " << i;
    }
    load.wait();
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaStream);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaStream, ::testing::ValuesIn(cuda_targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
