// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/parallel/collective.h"
#include "diffattn/train/adamw.h"
#include "train/layer_weights.h"

namespace diffattn::train {

/// Sums the gradients of all processes of a job. Parameters form buckets, in the reverse order of
/// the model, since the backward reaches its end first. A bucket's sum starts as soon as the
/// backward has computed its last gradient, and sums start in a fixed order.
///
/// With shard "optimizer" or "gradients" every process updates its part of each bucket and receives
/// the others: the parameters of a bucket then lie in one memory block. With "gradients" a process
/// also receives only its part of the sum, and whole gradients exist for a few buckets at a time.
/// With "parameters" it also keeps only its part of the matrices of each layer (LayerWeights).
class DataParallel {
 public:
  DataParallel(std::shared_ptr<parallel::Collective> world, const torch::nn::Module& model,
               const std::string& shard);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel();

  parallel::Collective& world() { return *world_; }
  bool is_sharded() const { return shard_ != Shard::kNone; }
  /// True if gradients are summed after every backward instead of once for an update.
  bool sums_every_backward() const { return shard_ == Shard::kParameters; }
  LayerWeights& layers() { return layers_; }

  /// Returns the tensors that this process's optimiser updates: the parameters, or parts of
  /// buckets.
  std::vector<OptimizedTensor> optimized() const;

  /// Lets the next backward start the sums.
  void begin_backward();
  /// Starts the sums that the backward has not started, waits for all, and makes the results the
  /// gradients of the tensors of `optimized`, or adds them.
  void finish_backward();
  /// Receives the parts of the parameters that other processes have updated.
  void gather_parameters();

  /// Returns this process's part of the optimiser's state by the names of the parameters: the state
  /// itself, or pieces of the flattened moments. The pieces of all ranks, in their order, make up
  /// the whole. The tensors share memory with the optimiser.
  std::vector<std::pair<std::string, torch::Tensor>> own_state(const AdamW& optimizer) const;
  /// Sets the optimiser's state; `whole` returns a tensor of the state of all processes by name and
  /// number of elements.
  void set_state(
      const AdamW& optimizer,
      const std::function<torch::Tensor(const std::string& name, int64_t count)>& whole) const;

 private:
  enum class Shard { kNone, kOptimizer, kGradients, kParameters };
  struct Member {
    size_t parameter;
    int64_t offset, count;
  };
  struct Bucket {
    std::vector<Member> members = {};
    bool decayed = false;
    std::optional<size_t> layer = {};  // whose matrices are whole only while it computes
    int64_t size = 0;                  // with padding, a multiple of the number of processes
    torch::Tensor parameters = {};     // [size], sharded
    torch::Tensor own = {};            // [size / processes]: this process's part of it
    torch::Tensor gradients = {};      // [size], or this process's part
    size_t missing = 0;                // gradients that the backward has not computed yet
    parallel::Started sum = {};
  };
  /// The elements of a member that are in this process's part of the bucket.
  struct Piece {
    int64_t in_member, in_part, count;
  };
  struct Hook;

  static Shard shard_from_name(const std::string& name);
  bool sums_parts() const { return shard_ == Shard::kGradients || shard_ == Shard::kParameters; }
  void make_buckets(const std::vector<std::shared_ptr<nn::StackLayer>>& layers);
  void lay_out(const std::vector<std::shared_ptr<nn::StackLayer>>& layers);
  void lay_out(Bucket& bucket);
  void ready(size_t parameter);
  void start(Bucket& bucket);
  torch::Tensor part_of(const torch::Tensor& whole) const;
  Piece own_piece(const Bucket& bucket, const Member& member) const;

  std::shared_ptr<parallel::Collective> world_;
  std::vector<OptimizedTensor> parameters_;
  Shard shard_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  // by parameter
  LayerWeights layers_;
  bool armed_ = false;
  size_t next_ = 0;  // the first bucket whose sum has not started
};

}  // namespace diffattn::train
