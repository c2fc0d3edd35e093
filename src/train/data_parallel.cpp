// SPDX-License-Identifier: Apache-2.0
#include "train/data_parallel.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <deque>
#include <map>

namespace diffattn::train {
namespace {

using torch::Tensor;

/// Elements of a bucket. Small enough that the first sums start early, large enough for a network.
constexpr int64_t kBucketElements = 4 << 20;
constexpr int64_t kPartAlignment = 64;  // elements of a process's part
/// Sums of sharded buckets, and buckets of parameters, that are on their way at once. Each takes
/// memory here and in the group.
constexpr size_t kAtOnce = 2;

int64_t rounded_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

std::string bucket_name(size_t index) { return "bucket-" + std::to_string(index); }

}  // namespace

/// Autograd calls it when a parameter has its gradient.
struct DataParallel::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(DataParallel& owner, size_t parameter) : owner_(owner), parameter_(parameter) {}
  void operator()(const Tensor&) override { owner_.ready(parameter_); }

 private:
  DataParallel& owner_;
  size_t parameter_;
};

DataParallel::DataParallel(std::shared_ptr<parallel::Collective> world,
                           std::vector<OptimizedTensor> parameters, const std::string& shard)
    : world_(std::move(world)),
      parameters_(std::move(parameters)),
      shard_(shard == "gradients"   ? Shard::kGradients
             : shard == "optimizer" ? Shard::kOptimizer
                                    : Shard::kNone),
      bucket_of_(parameters_.size()) {
  const torch::NoGradGuard no_grad;
  make_buckets();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i].tensor;
    // All ranks begin with the weights of rank 0.
    const Tensor weights = parameter.detach().contiguous();
    world_->broadcast(weights, 0).wait();
    if (!weights.is_same(parameter)) parameter.copy_(weights);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(*this, i));
  }
  if (is_sharded()) {
    for (Bucket& bucket : buckets_) lay_out(bucket);
  }
}

DataParallel::~DataParallel() {
  for (const OptimizedTensor& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
  }
}

/// Parts of a bucket get one weight decay, so decayed and other parameters have their own buckets.
void DataParallel::make_buckets() {
  std::map<bool, size_t> open;  // bucket that still takes members, by `decayed`
  for (size_t i = parameters_.size(); i-- > 0;) {
    const OptimizedTensor& parameter = parameters_[i];
    const auto at = open.find(parameter.decayed);
    if (at == open.end() || buckets_[at->second].size >= kBucketElements) {
      open[parameter.decayed] = buckets_.size();
      buckets_.emplace_back().decayed = parameter.decayed;
    }
    bucket_of_[i] = open[parameter.decayed];
    Bucket& bucket = buckets_[bucket_of_[i]];
    bucket.members.push_back({i, bucket.size, parameter.tensor.numel()});
    bucket.size += rounded_up(parameter.tensor.numel(), kPartAlignment);
  }
  for (Bucket& bucket : buckets_) {
    bucket.size = rounded_up(bucket.size, kPartAlignment * world_->size());
  }
}

/// Moves the parameters of a bucket into one memory block.
void DataParallel::lay_out(Bucket& bucket) {
  const auto& like = parameters_[bucket.members.front().parameter].tensor.options();
  bucket.parameters = torch::zeros({bucket.size}, like.requires_grad(false));
  for (const Member& member : bucket.members) {
    Tensor parameter = parameters_[member.parameter].tensor;
    const Tensor place =
        bucket.parameters.narrow(0, member.offset, member.count).view(parameter.sizes());
    place.copy_(parameter);
    parameter.set_data(place);
  }
  bucket.own = part_of(bucket.parameters);
}

Tensor DataParallel::part_of(const Tensor& whole) const {
  const int64_t count = whole.size(0) / world_->size();
  return whole.narrow(0, world_->rank() * count, count);
}

std::vector<OptimizedTensor> DataParallel::optimized() const {
  if (!is_sharded()) return parameters_;
  std::vector<OptimizedTensor> parts;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    parts.push_back({bucket_name(i), buckets_[i].own, buckets_[i].decayed});
  }
  return parts;
}

void DataParallel::begin_backward() {
  for (Bucket& bucket : buckets_) bucket.missing = bucket.members.size();
  next_ = 0;
  armed_ = true;
}

void DataParallel::ready(size_t parameter) {
  if (!armed_) return;
  Bucket& bucket = buckets_[bucket_of_[parameter]];
  TORCH_CHECK(bucket.missing > 0, "DataParallel: ", parameters_[parameter].name,
              " got a second gradient after its sum had started");
  --bucket.missing;
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) start(buckets_[next_++]);
}

/// Starts the sum of a bucket's gradients, and drops those of the parameters.
void DataParallel::start(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const Tensor& first = parameters_[bucket.members.front().parameter].tensor;
  const Tensor whole = torch::zeros(
      {bucket.size}, torch::TensorOptions().device(first.device()).dtype(torch::kFloat32));
  for (const Member& member : bucket.members) {
    Tensor& gradient = parameters_[member.parameter].tensor.mutable_grad();
    if (!gradient.defined()) continue;  // the model did not use it
    whole.narrow(0, member.offset, member.count).copy_(gradient.flatten());
    gradient = Tensor();
  }
  if (shard_ == Shard::kGradients) {
    const auto index = static_cast<size_t>(&bucket - buckets_.data());
    if (index >= kAtOnce) buckets_[index - kAtOnce].sum.wait();
    bucket.gradients = torch::empty({bucket.size / world_->size()}, whole.options());
    bucket.sum = world_->reduce_scatter(bucket.gradients, whole);
  } else {
    bucket.gradients = whole;
    bucket.sum = world_->all_reduce(whole);
  }
}

void DataParallel::finish_backward() {
  const torch::NoGradGuard no_grad;
  if (!armed_) begin_backward();
  armed_ = false;
  while (next_ < buckets_.size()) start(buckets_[next_++]);
  for (Bucket& bucket : buckets_) {
    bucket.sum.wait();
    if (shard_ == Shard::kGradients) {
      bucket.own.mutable_grad() = bucket.gradients;
    } else if (shard_ == Shard::kOptimizer) {
      bucket.own.mutable_grad() = part_of(bucket.gradients).clone();
    } else {
      for (const Member& member : bucket.members) {
        const Tensor& parameter = parameters_[member.parameter].tensor;
        parameter.mutable_grad() =
            bucket.gradients.narrow(0, member.offset, member.count).view(parameter.sizes());
      }
    }
    bucket.gradients = Tensor();
  }
}

Tensor DataParallel::gathered(const Tensor& part) {
  const Tensor whole = torch::empty({part.size(0) * world_->size()}, part.options());
  world_->all_gather(whole, part).wait();
  return whole;
}

void DataParallel::gather_parameters() {
  if (!is_sharded()) return;
  const torch::NoGradGuard no_grad;
  std::deque<parallel::Started> started;
  for (Bucket& bucket : buckets_) {
    if (started.size() == kAtOnce) {
      started.front().wait();
      started.pop_front();
    }
    started.push_back(world_->all_gather(bucket.parameters, bucket.own.clone()));
  }
  for (parallel::Started& one : started) one.wait();
}

DataParallel::NamedTensors DataParallel::whole_state(const AdamW& optimizer) {
  if (!is_sharded()) return optimizer.state();
  const torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> parts;
  for (const auto& [name, tensor] : optimizer.state()) parts[name] = tensor;
  NamedTensors whole;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Tensor average = gathered(parts.at(bucket_name(i) + ".exp_avg"));
    const Tensor squares = gathered(parts.at(bucket_name(i) + ".exp_avg_sq"));
    for (const Member& member : buckets_[i].members) {
      const auto& [name, parameter, decayed] = parameters_[member.parameter];
      const auto piece = [&](const Tensor& from) {
        return from.narrow(0, member.offset, member.count).view(parameter.sizes());
      };
      whole.emplace_back(name + ".exp_avg", piece(average));
      whole.emplace_back(name + ".exp_avg_sq", piece(squares));
      whole.emplace_back(name + ".step", parts.at(bucket_name(i) + ".step").clone());
    }
  }
  return whole;
}

void DataParallel::set_state(const AdamW& optimizer, const NamedTensors& whole) {
  if (!is_sharded()) return;  // `whole` shares memory with the optimiser
  const torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> by_name, parts;
  for (const auto& [name, tensor] : whole) by_name[name] = tensor;
  for (const auto& [name, tensor] : optimizer.state()) parts[name] = tensor;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    for (const std::string kind : {".exp_avg", ".exp_avg_sq"}) {
      const Tensor memory = torch::zeros_like(bucket.parameters);
      for (const Member& member : bucket.members) {
        memory.narrow(0, member.offset, member.count)
            .copy_(by_name.at(parameters_[member.parameter].name + kind).flatten());
      }
      parts.at(bucket_name(i) + kind).copy_(part_of(memory));
    }
    const std::string& first = parameters_[bucket.members.front().parameter].name;
    parts.at(bucket_name(i) + ".step").copy_(by_name.at(first + ".step"));
  }
}

}  // namespace diffattn::train
