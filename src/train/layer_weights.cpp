// SPDX-License-Identifier: Apache-2.0
#include "train/layer_weights.h"

#include <utility>

namespace diffattn::train {
namespace {

using torch::Tensor;

/// Frees or allocates the memory of a tensor. Its views, also those that a graph has saved, see it.
void set_memory(const Tensor& tensor, bool present) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = present ? tensor.nbytes() : 0;
  storage->set_data_ptr_noswap(present ? storage->allocator()->allocate(bytes)
                                       : c10::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(bytes);
}

}  // namespace

class LayerWeights::Watcher : public nn::LayerWatcher {
 public:
  Watcher(LayerWeights& owner, size_t layer) : owner_(owner), layer_(layer) {}
  void before_forward() override { owner_.need(layer_); }
  void before_backward() override { owner_.need(layer_); }
  void after_forward() override {
    // The backward begins with the last layer, and with each layer that ran for a second time.
    const bool last = layer_ + 1 == owner_.layers_.size() && torch::GradMode::is_enabled();
    if (!owner_.in_backward_ && !last) owner_.free(owner_.layers_[layer_]);
  }

 private:
  LayerWeights& owner_;
  size_t layer_;
};

LayerWeights::~LayerWeights() {
  for (Layer& layer : layers_) layer.module->watcher = nullptr;
}

size_t LayerWeights::add(std::shared_ptr<nn::StackLayer> layer, Tensor whole, Tensor own) {
  layer->watcher = std::make_shared<Watcher>(*this, layers_.size());
  layers_.push_back({std::move(layer), std::move(whole), std::move(own)});
  free(layers_.back());
  return layers_.size() - 1;
}

void LayerWeights::need(size_t layer) {
  begin_gather(layer);
  end_gather(layers_[layer]);
  if (!in_backward_ && layer + 1 < layers_.size()) begin_gather(layer + 1);
  if (in_backward_ && layer > 0) begin_gather(layer - 1);
}

void LayerWeights::begin_gather(size_t layer) {
  Layer& one = layers_[layer];
  if (one.is_whole || one.is_coming) return;
  set_memory(one.whole, true);
  one.gather = world_->all_gather(one.whole, one.own);
  one.is_coming = true;
}

void LayerWeights::end_gather(Layer& layer) {
  if (!layer.is_coming) return;
  layer.gather.wait();
  layer.is_coming = false;
  layer.is_whole = true;
}

void LayerWeights::free(Layer& layer) {
  end_gather(layer);  // a gather that nobody needed
  if (!layer.is_whole || held_) return;
  set_memory(layer.whole, false);
  layer.is_whole = false;
}

void LayerWeights::computed(size_t layer) { free(layers_[layer]); }

void LayerWeights::end_backward() {
  in_backward_ = false;
  for (Layer& layer : layers_) free(layer);
}

void LayerWeights::hold(bool everywhere) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    begin_gather(i);
    end_gather(layers_[i]);
    if (!everywhere && world_->rank() != 0) free(layers_[i]);
  }
  held_ = everywhere || world_->rank() == 0;
}

void LayerWeights::take() {
  const torch::NoGradGuard no_grad;
  for (Layer& layer : layers_) {
    const int64_t count = layer.own.size(0);
    layer.own.copy_(layer.whole.narrow(0, world_->rank() * count, count));
  }
}

void LayerWeights::release() {
  held_ = false;
  for (Layer& layer : layers_) free(layer);
}

}  // namespace diffattn::train
