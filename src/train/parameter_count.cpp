// SPDX-License-Identifier: Apache-2.0
#include "train/parameter_count.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "train/new_model.h"

namespace diffattn::train {
namespace {

/// While it exists, torch creates every tensor on its Meta backend: with a shape but no storage.
/// BackendSelect would send the creation of a tensor to the CPU, so it is left out. Initialisation
/// goes to the Meta backend because its key has a higher priority than that of the CPU.
struct NoStorage {
  // The guard of an included key leaves its backend behind, so the state is put back as a whole.
  c10::impl::ForceDispatchKeyGuard restore;
  c10::impl::IncludeDispatchKeyGuard meta{c10::DispatchKey::Meta};
  c10::impl::ExcludeDispatchKeyGuard no_choice{c10::DispatchKey::BackendSelect};
};

}  // namespace

int64_t parameter_count(const RunConfig& config, const TaskData& data) {
  if (!config.model.from.empty()) {  // its layers may be of several kinds
    const nn::ModelConfig whole = model_config_of(config);
    const NoStorage no_storage;
    return language_model(nn::CausalLM(whole))->parameter_count();
  }
  // All layers are alike, so two models tell the size of a model with thousands of layers.
  RunConfig small = config;
  const auto count = [&](int64_t layers) {
    small.model.num_hidden_layers = layers;
    try {
      const NoStorage no_storage;
      return new_task_model(small, data)->parameter_count();
    } catch (const c10::Error&) {  // torch 2.11 cannot initialise every part without storage
      return new_task_model(small, data)->parameter_count();
    }
  };
  const int64_t layers = config.model.num_hidden_layers, one = count(1);
  return layers == 1 ? one : one + (layers - 1) * (count(2) - one);
}

}  // namespace diffattn::train
