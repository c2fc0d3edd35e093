// SPDX-License-Identifier: Apache-2.0
//
// Offsets beyond 2^31: a batch so large that every tensor has more elements than that, and views
// whose rows span as much. Each batch entry must have the same bits as in a small batch.

#include <algorithm>

#include "diffattn/kernels/cuda.h"
#include "tests/kernels/cuda/backend.h"
#include "tests/support/rng.h"

namespace diffattn::testing {
namespace {

constexpr int64_t kSeq = 64, kHeads = 16, kDim = 64, kValueDim = 128;
constexpr int64_t kQueryEntry = kSeq * kHeads * kDim;       // elements of q1 in one batch entry
constexpr int64_t kValueEntry = kSeq * kHeads * kValueDim;  // elements of v in one batch entry
constexpr int64_t kPattern = 8;                             // period of the batch entries
constexpr int64_t kBatch = 32800;                           // kBatch * kQueryEntry = 2^31 + 2^21
static_assert(kBatch * kQueryEntry > (int64_t{1} << 31) && kBatch % kPattern == 0);

/// Device memory of `count` bfloat16 elements.
class Large {
 public:
  explicit Large(int64_t count) : count_(count) {
    check_cuda(cudaMalloc(&data_, static_cast<size_t>(count) * sizeof(BFloat16)));
  }
  ~Large() { cudaFree(data_); }
  Large(const Large&) = delete;
  Large& operator=(const Large&) = delete;

  /// Fills it with random numbers that repeat after `period` elements.
  void fill(uint64_t seed, int64_t period) {
    Rng rng(seed);
    std::vector<BFloat16> values(period);
    for (BFloat16& x : values) x = BFloat16(static_cast<float>(rng.normal()));
    check_cuda(cudaMemcpy(data_, values.data(), period * sizeof(BFloat16), cudaMemcpyHostToDevice));
    for (int64_t done = period; done < count_; done *= 2) {
      const int64_t more = std::min(done, count_ - done);
      check_cuda(cudaMemcpy(at(done), data_, more * sizeof(BFloat16), cudaMemcpyDeviceToDevice));
    }
  }

  BFloat16* at(int64_t i) const { return static_cast<BFloat16*>(data_) + i; }
  std::vector<uint16_t> bits(int64_t begin, int64_t count) const {
    std::vector<uint16_t> values(count);
    check_cuda(cudaMemcpy(values.data(), at(begin), count * 2, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  int64_t count_;
};

/// True if the GPU has less free memory than that.
bool lacks(double gigabytes) {
  size_t free_bytes = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total));
  return static_cast<double>(free_bytes) < gigabytes * 1e9;
}

Problem sizes(int64_t batch) {
  Problem p;
  p.dtype = Dtype::kBFloat16;
  p.batch = batch;
  p.heads = p.kv_heads = kHeads;
  p.seq_q = p.seq_k = kSeq;
  p.head_dim = kDim;
  p.value_dim = kValueDim;
  p.scale = p.scale2 = 0.125;
  p.causal = true;
  p.max_capability = capability_limit();
  return p;
}

View<void> dense(const Large& memory, int64_t width) {
  return {memory.at(0), kSeq * kHeads * width, kHeads * width, width};
}
View<const void> input(const View<void>& view) {
  return {view.data, view.batch_stride, view.seq_stride, view.head_stride};
}

/// Runs forward and backward of a batch whose entries repeat with period kPattern, and keeps the
/// outputs.
struct DenseRun {
  Large x, y, z;  // q1 = k1, q2 = k2, v = dout
  Large out, o, o2, dq1, dq2, dk1, dk2, dv;

  explicit DenseRun(int64_t batch)
      : x(batch * kQueryEntry),
        y(batch * kQueryEntry),
        z(batch * kValueEntry),
        out(batch * kValueEntry),
        o(batch * kValueEntry),
        o2(batch * kValueEntry),
        dq1(batch * kQueryEntry),
        dq2(batch * kQueryEntry),
        dk1(batch * kQueryEntry),
        dk2(batch * kQueryEntry),
        dv(batch * kValueEntry) {
    x.fill(1, kPattern * kQueryEntry);
    y.fill(2, kPattern * kQueryEntry);
    z.fill(3, kPattern * kValueEntry);
    const Workspace lambda(4), lse1(4 * batch * kSeq * kHeads), lse2(4 * batch * kSeq * kHeads);
    const float half = 0.5f;
    check_cuda(cudaMemcpy(lambda.data(), &half, 4, cudaMemcpyHostToDevice));
    const auto rows = [&](const Workspace& memory) {
      return View<void>{memory.data(), kSeq * kHeads, kHeads, 1};
    };
    ForwardParams f;
    static_cast<Problem&>(f) = sizes(batch);
    f.q1 = f.k1 = input(dense(x, kDim));
    f.q2 = f.k2 = input(dense(y, kDim));
    f.v = input(dense(z, kValueDim));
    f.lambda = {lambda.data()};
    f.out = dense(out, kValueDim), f.o = dense(o, kValueDim), f.o2 = dense(o2, kValueDim);
    f.lse1 = rows(lse1), f.lse2 = rows(lse2);
    const Workspace forward_workspace(cuda::forward_workspace_bytes(f));
    cuda::forward(f, forward_workspace.data(), nullptr);

    BackwardParams g;
    static_cast<Problem&>(g) = f;
    g.v = f.v, g.dout = f.v;
    g.lse1 = input(f.lse1), g.lse2 = input(f.lse2), g.o = input(f.o), g.o2 = input(f.o2);
    g.dq1 = dense(dq1, kDim), g.dq2 = dense(dq2, kDim);
    g.dk1 = dense(dk1, kDim), g.dk2 = dense(dk2, kDim), g.dv = dense(dv, kValueDim);
    const Workspace workspace(cuda::backward_workspace_bytes(g));
    cuda::backward(g, workspace.data(), nullptr);
    check_cuda(cudaDeviceSynchronize());
  }
};

TEST(CudaLarge, BatchBeyond31Bits) {
  if (device_capability() < 80)
    GTEST_SKIP() << "skipped: no GPU of compute capability 8.0 or later";
  if (lacks(100)) GTEST_SKIP() << "skipped: needs 100 GB of free GPU memory";
  const DenseRun small(kPattern);
  const DenseRun large(kBatch);
  // The first entries, those around element 2^31, and the last ones.
  const int64_t middle = (int64_t{1} << 31) / kValueEntry / kPattern * kPattern;
  for (const int64_t b : {int64_t{0}, middle, 2 * middle, kBatch - kPattern}) {
    const auto expect_same = [&](const char* name, Large DenseRun::*member, int64_t entry) {
      const int64_t count = kPattern * entry;
      EXPECT_EQ((large.*member).bits(b * entry, count), (small.*member).bits(0, count))
          << name << " from batch entry " << b;
    };
    expect_same("out", &DenseRun::out, kValueEntry);
    expect_same("dq1", &DenseRun::dq1, kQueryEntry);
    expect_same("dq2", &DenseRun::dq2, kQueryEntry);
    expect_same("dk1", &DenseRun::dk1, kQueryEntry);
    expect_same("dk2", &DenseRun::dk2, kQueryEntry);
    expect_same("dv", &DenseRun::dv, kValueEntry);
  }
}

/// One sequence whose rows are 2^26 elements apart, with all inputs and outputs in one buffer.
TEST(CudaLarge, StridesBeyond31Bits) {
  if (device_capability() < 80)
    GTEST_SKIP() << "skipped: no GPU of compute capability 8.0 or later";
  if (lacks(12)) GTEST_SKIP() << "skipped: needs 12 GB of free GPU memory";
  constexpr int64_t kStride = int64_t{1} << 26;
  constexpr int64_t kRow = kHeads * kDim, kValueRow = kHeads * kValueDim;
  static_assert((kSeq - 1) * kStride > (int64_t{1} << 31));
  const Large near(kSeq * (4 * kRow + 2 * kValueRow)), far((kSeq - 1) * kStride + 2 * kStride);
  Large source(kSeq * (4 * kRow + kValueRow));
  source.fill(4, kSeq * (4 * kRow + kValueRow));
  const Workspace lambda(4);
  const float half = 0.5f;
  check_cuda(cudaMemcpy(lambda.data(), &half, 4, cudaMemcpyHostToDevice));
  // Each tensor starts at its own offset within a row; rows are `stride` elements apart.
  const auto run = [&](const Large& memory, int64_t stride) {
    const int64_t widths[] = {kRow, kRow, kRow, kRow, kValueRow, kValueRow};
    View<void> views[6];
    int64_t offset = 0, from = 0;
    for (int i = 0; i < 6; ++i) {
      views[i] = {memory.at(offset), 0, stride, widths[i] / kHeads};
      if (i < 5) {
        check_cuda(cudaMemcpy2D(memory.at(offset), stride * 2, source.at(from), widths[i] * 2,
                                widths[i] * 2, kSeq, cudaMemcpyDeviceToDevice));
      }
      offset += widths[i];
      from += kSeq * widths[i];
    }
    ForwardParams f;
    static_cast<Problem&>(f) = sizes(1);
    f.q1 = input(views[0]), f.q2 = input(views[1]), f.k1 = input(views[2]), f.k2 = input(views[3]);
    f.v = input(views[4]);
    f.lambda = {lambda.data()};
    f.out = views[5];
    const Workspace forward_workspace(cuda::forward_workspace_bytes(f));
    cuda::forward(f, forward_workspace.data(), nullptr);
    std::vector<uint16_t> out(kSeq * kValueRow);
    check_cuda(cudaMemcpy2D(out.data(), kValueRow * 2, views[5].data, stride * 2, kValueRow * 2,
                            kSeq, cudaMemcpyDeviceToHost));
    return out;
  };
  EXPECT_EQ(run(far, kStride), run(near, 4 * kRow + 2 * kValueRow));
}

}  // namespace
}  // namespace diffattn::testing
