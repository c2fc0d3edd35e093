// SPDX-License-Identifier: Apache-2.0
#include "train/data_parallel.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "diffattn/error.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

/// Elements of a bucket. Small enough that the first sums start early, large enough for a network.
constexpr int64_t kMostElements = 4 << 20, kLeastElements = 1 << 16;
/// A small model has about so many buckets, so that those in flight take little of its memory.
constexpr int64_t kFewestBuckets = 32;
constexpr int64_t kPartAlignment = 64;  // elements of a process's part
/// Sums of sharded buckets, and gathers of parameters, in flight at once. Each takes memory here
/// and in the process group.
constexpr size_t kAtOnce = 2;

int64_t rounded_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

std::string bucket_name(size_t index) { return "bucket-" + std::to_string(index); }

std::vector<std::shared_ptr<nn::StackLayer>> layers_of(const torch::nn::Module& model) {
  std::vector<std::shared_ptr<nn::StackLayer>> found;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto layer = std::dynamic_pointer_cast<nn::StackLayer>(module)) found.push_back(layer);
  }
  return found;
}

/// Returns the layer of each parameter that belongs to exactly one.
std::unordered_map<const void*, size_t> layer_by_parameter(
    const std::vector<std::shared_ptr<nn::StackLayer>>& layers) {
  std::unordered_map<const void*, size_t> found;
  std::vector<const void*> shared;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const Tensor& parameter : layers[i]->parameters()) {
      const auto [at, added] = found.emplace(parameter.unsafeGetTensorImpl(), i);
      if (!added && at->second != i) shared.push_back(at->first);
    }
  }
  for (const void* parameter : shared) found.erase(parameter);
  return found;
}

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
                           const torch::nn::Module& model, const std::string& shard)
    : world_(std::move(world)),
      parameters_(optimized_tensors(model)),
      shard_(shard_from_name(shard)),
      bucket_of_(parameters_.size()),
      layers_(world_) {
  const torch::NoGradGuard no_grad;
  const auto layers = layers_of(model);
  make_buckets(shard_ == Shard::kParameters ? layers : decltype(layers)());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i].tensor;
    // All ranks begin with the weights of rank 0.
    const Tensor weights = parameter.detach().contiguous();
    world_->broadcast(weights, 0).wait();
    if (!weights.is_same(parameter)) parameter.copy_(weights);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(*this, i));
  }
  if (!is_sharded()) return;
  lay_out(layers);
}

DataParallel::Shard DataParallel::shard_from_name(const std::string& name) {
  if (name == "optimizer") return Shard::kOptimizer;
  if (name == "gradients") return Shard::kGradients;
  return name == "parameters" ? Shard::kParameters : Shard::kNone;
}

DataParallel::~DataParallel() {
  for (const OptimizedTensor& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
  }
}

/// Parts of a bucket get one weight decay, so decayed and other parameters have their own buckets.
/// The decayed parameters of each of `layers` have one, too.
void DataParallel::make_buckets(const std::vector<std::shared_ptr<nn::StackLayer>>& layers) {
  const auto layer_of = layer_by_parameter(layers);
  int64_t total = 0;
  for (const OptimizedTensor& parameter : parameters_) total += parameter.tensor.numel();
  const int64_t full = std::clamp(total / kFewestBuckets, kLeastElements, kMostElements);
  std::map<std::pair<bool, std::optional<size_t>>, size_t> open;  // buckets that take members
  for (size_t i = parameters_.size(); i-- > 0;) {
    const OptimizedTensor& parameter = parameters_[i];
    const auto found = layer_of.find(parameter.tensor.unsafeGetTensorImpl());
    const bool in_layer = parameter.decayed && found != layer_of.end();
    const auto layer = in_layer ? std::optional(found->second) : std::nullopt;
    const std::pair key(parameter.decayed, layer);
    const auto at = open.find(key);
    if (at == open.end() || (!layer && buckets_[at->second].size >= full)) {
      open[key] = buckets_.size();
      Bucket& bucket = buckets_.emplace_back();
      bucket.decayed = parameter.decayed;
      bucket.layer = layer;
    }
    Bucket& bucket = buckets_[open[key]];
    bucket.members.push_back({i, bucket.size, parameter.tensor.numel()});
    bucket.size += rounded_up(parameter.tensor.numel(), kPartAlignment);
  }
  // Sums start in the order of the buckets, so the backward must complete them in this order. Small
  // parameters of all layers share a bucket, which waits for the first layer.
  std::ranges::stable_sort(buckets_, std::greater(),
                           [](const Bucket& bucket) { return bucket.members.back().parameter; });
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    bucket.size = rounded_up(bucket.size, kPartAlignment * world_->size());
    for (const Member& member : bucket.members) bucket_of_[member.parameter] = i;
  }
}

/// Moves the parameters of each bucket into one memory block, and leaves this process only its
/// parts of the buckets of layers.
void DataParallel::lay_out(const std::vector<std::shared_ptr<nn::StackLayer>>& layers) {
  std::map<size_t, Bucket*> of_layer;
  for (Bucket& bucket : buckets_) {
    if (bucket.layer) of_layer[*bucket.layer] = &bucket;
  }
  for (const auto& [layer, bucket] : of_layer) {
    lay_out(*bucket);
    bucket->own = bucket->own.clone();
    bucket->layer = layers_.add(layers[layer], bucket->parameters, bucket->own);
  }
  for (Bucket& bucket : buckets_) {
    if (!bucket.layer) lay_out(bucket);
  }
}

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
  layers_.begin_backward();
}

void DataParallel::ready(size_t parameter) {
  if (!armed_) return;
  Bucket& bucket = buckets_[bucket_of_[parameter]];
  if (bucket.missing == 0) {
    throw Error("diffattn: DataParallel: expected one gradient of " + parameters_[parameter].name +
                " in a backward pass, got a second one after its sum had started");
  }
  if (--bucket.missing == 0 && bucket.layer) layers_.computed(*bucket.layer);
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
  if (sums_parts()) {
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
    if (sums_parts()) {
      Tensor& gradient = bucket.own.mutable_grad();
      gradient = gradient.defined() ? gradient.add_(bucket.gradients) : bucket.gradients;
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
  layers_.end_backward();
}

void DataParallel::gather_parameters() {
  if (!is_sharded()) return;
  const torch::NoGradGuard no_grad;
  std::deque<parallel::Started> started;
  for (Bucket& bucket : buckets_) {
    if (bucket.layer) continue;
    if (started.size() == kAtOnce) {
      started.front().wait();
      started.pop_front();
    }
    started.push_back(world_->all_gather(bucket.parameters, bucket.own.clone()));
  }
  for (parallel::Started& one : started) one.wait();
}

DataParallel::Piece DataParallel::own_piece(const Bucket& bucket, const Member& member) const {
  const int64_t part = bucket.size / world_->size(), begin = world_->rank() * part;
  const int64_t from = std::max(member.offset, begin);
  const int64_t to = std::min(member.offset + member.count, begin + part);
  return {from - member.offset, from - begin, std::max<int64_t>(0, to - from)};
}

std::vector<std::pair<std::string, Tensor>> DataParallel::own_state(const AdamW& optimizer) const {
  if (!is_sharded()) {
    if (world_->rank() == 0) return optimizer.state();
    return {};
  }
  std::map<std::string, Tensor> parts;
  for (const auto& [name, tensor] : optimizer.state()) parts[name] = tensor;
  std::vector<std::pair<std::string, Tensor>> own;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (const Member& member : buckets_[i].members) {
      const Piece piece = own_piece(buckets_[i], member);
      if (piece.count == 0) continue;
      const std::string& name = parameters_[member.parameter].name;
      for (const std::string kind : {".exp_avg", ".exp_avg_sq"}) {
        own.emplace_back(name + kind,
                         parts.at(bucket_name(i) + kind).narrow(0, piece.in_part, piece.count));
      }
      own.emplace_back(name + ".step", parts.at(bucket_name(i) + ".step"));
    }
  }
  return own;
}

void DataParallel::set_state(
    const AdamW& optimizer,
    const std::function<Tensor(const std::string& name, int64_t count)>& whole) const {
  const torch::NoGradGuard no_grad;
  if (!is_sharded()) {
    for (const auto& [name, tensor] : optimizer.state()) {
      tensor.copy_(whole(name, tensor.numel()).view(tensor.sizes()));
    }
    return;
  }
  std::map<std::string, Tensor> parts;
  for (const auto& [name, tensor] : optimizer.state()) parts[name] = tensor;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (const Member& member : buckets_[i].members) {
      const Piece piece = own_piece(buckets_[i], member);
      if (piece.count == 0) continue;
      const std::string& name = parameters_[member.parameter].name;
      for (const std::string kind : {".exp_avg", ".exp_avg_sq"}) {
        parts.at(bucket_name(i) + kind)
            .narrow(0, piece.in_part, piece.count)
            .copy_(
                whole(name + kind, member.count).flatten().narrow(0, piece.in_member, piece.count));
      }
    }
    const std::string& first = parameters_[buckets_[i].members.front().parameter].name;
    parts.at(bucket_name(i) + ".step").copy_(whole(first + ".step", 1).squeeze());
  }
}

}  // namespace diffattn::train
