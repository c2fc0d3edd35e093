// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/parallel/collective.h"
#include "diffattn/train/adamw.h"

namespace diffattn::train {

/// Sums the gradients of all processes of a job. Parameters form buckets, in the reverse order of
/// the model, since the backward reaches its end first. A bucket's sum starts as soon as the
/// backward has computed its last gradient, and sums start in a fixed order.
///
/// With shard "optimizer" or "gradients" every process updates its part of each bucket and receives
/// the others: the parameters of a bucket then lie in one memory block. With "gradients" a process
/// also receives only its part of the sum, and whole gradients exist for one bucket at a time.
class DataParallel {
 public:
  DataParallel(std::shared_ptr<parallel::Collective> world, std::vector<OptimizedTensor> parameters,
               const std::string& shard);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel();

  parallel::Collective& world() { return *world_; }
  bool is_sharded() const { return shard_ != Shard::kNone; }

  /// Returns the tensors that this process's optimiser updates: the parameters, or parts of
  /// buckets.
  std::vector<OptimizedTensor> optimized() const;

  /// Lets the next backward start the sums.
  void begin_backward();
  /// Starts the sums that the backward has not started, waits for all, and makes the results the
  /// gradients of the tensors of `optimized`.
  void finish_backward();
  /// Receives the parts of the parameters that other processes have updated.
  void gather_parameters();

  using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;
  /// Returns the optimiser's state of all processes by the names of the parameters, as AdamW::state
  /// of one process does. Without sharding the tensors share memory with the optimiser.
  NamedTensors whole_state(const AdamW& optimizer);
  /// Sets the optimiser's state from that of all processes.
  void set_state(const AdamW& optimizer, const NamedTensors& whole);

 private:
  enum class Shard { kNone, kOptimizer, kGradients };
  struct Member {
    size_t parameter;
    int64_t offset, count;
  };
  struct Bucket {
    std::vector<Member> members = {};
    bool decayed = false;
    int64_t size = 0;               // with padding, a multiple of the number of processes
    torch::Tensor parameters = {};  // [size], sharded
    torch::Tensor own = {};         // [size / processes]: this process's part of it
    torch::Tensor gradients = {};   // [size], or this process's part
    size_t missing = 0;             // gradients that the backward has not computed yet
    parallel::Started sum = {};
  };
  struct Hook;

  void make_buckets();
  void lay_out(Bucket& bucket);
  void ready(size_t parameter);
  void start(Bucket& bucket);
  torch::Tensor part_of(const torch::Tensor& whole) const;
  torch::Tensor gathered(const torch::Tensor& part);

  std::shared_ptr<parallel::Collective> world_;
  std::vector<OptimizedTensor> parameters_;
  Shard shard_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  // by parameter
  bool armed_ = false;
  size_t next_ = 0;  // the first bucket whose sum has not started
};

}  // namespace diffattn::train
