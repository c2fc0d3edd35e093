// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/host/noise_sharing.h"

#include <algorithm>

#include "diffattn/kernels/half.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// Returns the work of a padded noise row.
int64_t row_work(const Head& head, const PairWork& work) {
  return work.both_maps + (head.share - 1) * work.one_map;
}

int64_t task_count(std::span<const Head> heads, int block_rows) {
  int64_t tasks = 0;
  for (const Head& head : heads) tasks += ceil_div(head.noise_rows(), block_rows);
  return tasks;
}

/// Returns a bound on the time of the slowest thread, if every thread takes tasks until none is
/// left: it starts its last task before total / threads, and takes at most an equal share of tasks
/// if all last as long as the largest.
double slowest_thread(std::span<const Head> heads, const PairWork& work, int strip_rows,
                      int block_rows) {
  double total = 0.0, largest = 0.0;
  for (const Head& head : heads) {
    const auto time = [&](int64_t rows) {
      return static_cast<double>(ceil_div(rows, strip_rows) * strip_rows * row_work(head, work));
    };
    total += time(head.noise_rows());
    largest = std::max(largest, time(std::min<int64_t>(head.noise_rows(), block_rows)));
  }
  const auto count = static_cast<double>(threads().count());
  const int64_t rounds = ceil_div(task_count(heads, block_rows), threads().count());
  return std::min((total + (count - 1.0) * largest) / count, static_cast<double>(rounds) * largest);
}

void store(Dtype dtype, void* to, int64_t i, float x) {
  switch (dtype) {
    case Dtype::kFloat64: break;
    case Dtype::kFloat32: static_cast<float*>(to)[i] = x; break;
    case Dtype::kBFloat16: static_cast<BFloat16*>(to)[i] = BFloat16(x); break;
    case Dtype::kFloat16: static_cast<Float16*>(to)[i] = Float16(x); break;
  }
}

}  // namespace

void share_noise_heads(std::span<Head> heads, int64_t group, const PairWork& work, int strip_rows) {
  for (Head& head : heads) {
    const int64_t independent = ceil_div(head.rows, strip_rows) * row_work(head, work);
    head.share = group;
    const int64_t shared = ceil_div(head.noise_rows(), strip_rows) * row_work(head, work);
    if (shared > independent) head.share = 1;
  }
}

int share_noise_heads(std::span<Head> heads, int64_t group, const PairWork& work, int strip_rows,
                      int block_rows) {
  if (group == 1) return block_rows;
  const double independent = slowest_thread(heads, work, strip_rows, block_rows);
  share_noise_heads(heads, group, work, strip_rows);
  int rows = block_rows;
  while (rows > strip_rows && task_count(heads, rows) < threads().count()) rows -= strip_rows;
  if (slowest_thread(heads, work, strip_rows, rows) <= independent) return rows;
  for (Head& head : heads) head.share = 1;
  return block_rows;
}

NoiseQuerySum::NoiseQuerySum(const BackwardParams& params, std::span<const Head> heads)
    : params_(params), heads_(heads) {
  int64_t rows = 0;
  for (const Head& head : heads) {
    first_row_.push_back(rows);
    if (has(head)) rows += head.rows;
  }
  parts_.resize(rows * params.head_dim);
}

void NoiseQuerySum::store() const {
  const int64_t width = params_.head_dim, group = params_.noise_group();
  const auto count = static_cast<int64_t>(heads_.size());
  parallel_for(count, worker_count(count), [&](int64_t index, int64_t) {
    if (!has(heads_[index])) return;
    Head head = heads_[index];
    head.share = group;
    for (int64_t n = 0; n < head.noise_rows(); ++n) {
      const int64_t first = head.row(n, 0);
      void* const to = at(params_.dq2, params_.dtype, head.b, head.seq.q_begin + head.query(first),
                          head.head(first) / group);
      for (int64_t c = 0; c < width; ++c) {
        float sum = 0.0f;
        for (int64_t i = 0; i < group; ++i) {
          sum += parts_[(first_row_[index] + head.row(n, i)) * width + c];
        }
        cpu::store(params_.dtype, to, c, sum);
      }
    }
  });
}

}  // namespace diffattn::cpu
