// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "diffattn/nn/stack_layer.h"
#include "diffattn/parallel/collective.h"

namespace diffattn::train {

/// The matrices of the layers of a model, of which every process keeps a part. A layer's matrices
/// are whole only while the layer computes: the forward gathers them one layer ahead and frees them
/// behind, and so does the backward. All processes must run the layers in the same order.
class LayerWeights {
 public:
  explicit LayerWeights(std::shared_ptr<parallel::Collective> world) : world_(std::move(world)) {}
  LayerWeights(const LayerWeights&) = delete;
  LayerWeights& operator=(const LayerWeights&) = delete;
  ~LayerWeights();

  /// Adds a layer whose matrices are views of `whole` [processes * n], and frees them; `own` [n] is
  /// this process's part. Layers come in the order in which they run. Returns the layer's number.
  size_t add(std::shared_ptr<nn::StackLayer> layer, torch::Tensor whole, torch::Tensor own);

  /// Between begin_backward() and end_backward(), layers run in reverse order and may recompute
  /// their forward.
  void begin_backward() { in_backward_ = true; }
  void end_backward();
  /// Frees the matrices of a layer, after the backward has computed its gradients.
  void computed(size_t layer);

  /// Gathers all matrices. Rank 0 keeps them until release(); on other ranks they stay only with
  /// `everywhere`.
  void hold(bool everywhere);
  /// Makes the held matrices, which the caller may have changed, those of all later steps.
  void take();
  void release();

 private:
  struct Layer {
    std::shared_ptr<nn::StackLayer> module;
    torch::Tensor whole, own;
    bool is_whole = true, is_coming = false;
    parallel::Started gather = {};
  };
  class Watcher;

  void need(size_t layer);
  void begin_gather(size_t layer);
  void end_gather(Layer& layer);
  void free(Layer& layer);

  std::shared_ptr<parallel::Collective> world_;
  std::vector<Layer> layers_;
  bool in_backward_ = false, held_ = false;
};

}  // namespace diffattn::train
