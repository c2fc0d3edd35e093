// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace diffattn::parallel {

/// A collective operation that may still run. Its tensors must not be used before wait().
class Started {
 public:
  Started() = default;
  explicit Started(std::function<void()> wait) : wait_(std::move(wait)) {}
  /// Waits for the result. On a GPU only the current stream waits. Throws diffattn::Error if the
  /// operation failed, for example because another process has ended.
  void wait() {
    if (wait_) std::exchange(wait_, nullptr)();
  }

 private:
  std::function<void()> wait_;
};

/// The processes that work on one job. All of them must call the same operations in the same order.
/// Tensors are dense, of one type and size on all ranks. Sums are the same bits on all ranks and in
/// every run with as many processes.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// True for the processes of a group, which may be one. Training then sums gradients by the
  /// group's operations.
  virtual bool is_group() const { return size() > 1; }
  /// True if the operations work on tensors of this kind of device.
  virtual bool takes(torch::DeviceType device) const = 0;
  /// Returns a second group of the same processes. Operations of the two groups do not wait for
  /// each other.
  virtual std::shared_ptr<Collective> second() = 0;

  /// Copies the tensor of rank `root` to all ranks.
  virtual Started broadcast(const torch::Tensor& tensor, int64_t root) = 0;
  /// Replaces the tensor by the sum over all ranks.
  virtual Started all_reduce(const torch::Tensor& tensor) = 0;
  /// Stores part `rank` of the sum of `in` [size n] over all ranks to `out` [n].
  virtual Started reduce_scatter(const torch::Tensor& out, const torch::Tensor& in) = 0;
  /// Stores `in` [n] of all ranks, in their order, to `out` [size n].
  virtual Started all_gather(const torch::Tensor& out, const torch::Tensor& in) = 0;
  /// Sends in_counts[i] elements of the flat `in` to rank i and receives out_counts[i] elements
  /// from it into the flat `out`. Parts are in the order of the ranks. Counts may be 0.
  virtual Started exchange(const torch::Tensor& out, const torch::Tensor& in,
                           std::vector<int64_t> out_counts, std::vector<int64_t> in_counts) = 0;
};

/// Returns a job of one process, whose operations only copy.
std::shared_ptr<Collective> one_process();

/// Returns the processes of the c10d group `name`, which Python's init_process_group made in this
/// process. `second` names another group of the same processes, for Collective::second(). Throws
/// diffattn::Error if a group does not exist.
std::shared_ptr<Collective> process_group(const std::string& name, const std::string& second);

/// Returns the processes of this job: one process, unless join() named groups.
std::shared_ptr<Collective> world();
/// Sets the groups that world() returns. Empty names restore one process. With `shared_gpus`,
/// tensors of devices that the groups do not take go through host memory.
void join(const std::string& group_name, const std::string& second, bool shared_gpus = false);

/// Throws diffattn::Error, naming `what` and the ranks, if `text` differs between ranks.
void check_same(Collective& world, const std::string& what, const std::string& text);

/// True on all ranks if `here` is true on one of them.
bool any_rank(Collective& world, bool here);

/// Throws diffattn::Error if collective operations do not support `device`, for example because
/// this torch has no NCCL.
void check_device(const Collective& world, torch::Device device);

/// Returns the texts of all ranks, in the order of the ranks. Texts may hold any bytes.
std::vector<std::string> all_gather_texts(Collective& world, const std::string& text);

}  // namespace diffattn::parallel
