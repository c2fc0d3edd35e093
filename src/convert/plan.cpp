// SPDX-License-Identifier: Apache-2.0
#include "convert/plan.h"

#include <algorithm>
#include <set>

#include "convert/numbers.h"
#include "diffattn/io/error.h"

namespace diffattn::convert {
namespace {

using io::in_quotes;

/// Applies the renames of `options` to a name and adds the ones that matched to `fitting`.
std::string renamed(std::string name, const Options& options, std::set<std::string>& fitting) {
  for (const auto& [from, to] : options.renames) {
    const size_t at = name.find(from);
    if (at == std::string::npos) continue;
    name.replace(at, from.size(), to);
    fitting.insert(from);
  }
  return name;
}

}  // namespace

Plan::Plan(const Model& model, const io::TensorSource& source, const Options& options)
    : model_(model), source_(source), options_(options) {
  std::set<std::string> fitting;
  for (const std::string& name : source.names()) {
    const std::string known = renamed(name, options, fitting);
    if (!actual_.emplace(known, name).second) {
      throw io::Error(source.name(),
                      "expected unique names after renaming, got " + in_quotes(known) + " twice");
    }
  }
  for (const auto& [from, to] : options.renames) {
    if (fitting.contains(from)) continue;
    throw io::Error(source.name(), "expected a tensor with " + in_quotes(from) +
                                       " in its name for --rename, got none");
  }
}

std::string Plan::take(const std::string& name, const Shape& shape) {
  const auto found = actual_.find(name);
  if (found == actual_.end()) {
    throw io::Error(source_.name(), "expected a tensor named " + in_quotes(name) + ", got none");
  }
  const io::TensorInfo& info = source_.at(found->second);
  if (!is_number_type(info.dtype)) {
    throw io::Error(source_.name(), "tensor " + in_quotes(name) +
                                        ": expected float32, bfloat16, float16 or float64, got " +
                                        std::string(io::dtype_name(info.dtype)));
  }
  if (info.shape != shape) {
    throw io::Error(source_.name(), "tensor " + in_quotes(name) + ": expected shape " +
                                        io::shape_text(shape) + " by config.json, got " +
                                        io::shape_text(info.shape));
  }
  used_.insert(name);
  return found->second;
}

io::Dtype Plan::dtype(const std::string& name) const { return source_.at(actual_.at(name)).dtype; }

int64_t Plan::rows_of(const std::string& name) const {
  const Shape& shape = source_.at(actual_.at(name)).shape;
  return shape.empty() ? 0 : shape[0];
}

void Plan::add(const std::string& name, const Shape& shape, io::Dtype dtype,
               const std::string& what, Recipe recipe, bool exact) {
  TensorReport report{{name, dtype, shape}, recipe.source, what, exact};
  outputs_.push_back({std::move(report), std::move(recipe)});
}

void Plan::copy(const std::string& name, const Shape& shape, const std::string& new_name) {
  Recipe recipe;
  recipe.source = take(name, shape);
  const char* what = recipe.source == new_name ? "copied" : "renamed";
  add(new_name, shape, dtype(name), what, std::move(recipe));
}

void Plan::rows(const std::string& name, const Shape& shape, const std::string& new_name,
                std::vector<int64_t> rows, const std::string& what) {
  Recipe recipe;
  recipe.source = take(name, shape);
  Shape out = shape;
  out[0] = std::ssize(rows);
  recipe.rows = std::move(rows);
  add(new_name, out, dtype(name), what, std::move(recipe));
}

void Plan::leave(const std::string& name, const std::string& why) {
  used_.insert(name);
  left_.push_back({actual_.at(name), why});
}

void Plan::copy_rest() {
  const Model& m = model_;
  copy("model.embed_tokens.weight", {m.vocabulary, m.hidden});
  copy("model.norm.weight", {m.hidden});
  if (!m.tied) copy("lm_head.weight", {m.vocabulary, m.hidden});
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    copy(prefix + "input_layernorm.weight", {m.hidden});
    copy(prefix + "post_attention_layernorm.weight", {m.hidden});
    copy(prefix + "mlp.gate_proj.weight", {m.intermediate, m.hidden});
    copy(prefix + "mlp.up_proj.weight", {m.intermediate, m.hidden});
    copy(prefix + "mlp.down_proj.weight", {m.hidden, m.intermediate});
    if (!m.mlp_bias) continue;
    copy(prefix + "mlp.gate_proj.bias", {m.intermediate});
    copy(prefix + "mlp.up_proj.bias", {m.intermediate});
    copy(prefix + "mlp.down_proj.bias", {m.hidden});
  }
}

std::vector<std::string> Plan::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, actual] : actual_) {
    if (!used_.contains(name)) names.push_back(name);
  }
  return names;
}

void Plan::finish() {
  for (const std::string& name : unused()) {
    if (name.ends_with("rotary_emb.inv_freq"))
      leave(name, "a rotary table: config.json describes it");
    if (name == "lm_head.weight") leave(name, "tied to the embeddings according to config.json");
  }
  if (const std::vector<std::string> names = unused(); !names.empty()) {
    std::string list;
    for (size_t i = 0; i < std::min<size_t>(3, names.size()); ++i) {
      list += (i == 0 ? "" : ", ") + in_quotes(names[i]);
    }
    if (names.size() > 3) list += " and " + std::to_string(names.size() - 3) + " more";
    throw io::Error(source_.name(), "expected only tensors of a " +
                                        std::string(format_name(model_.format)) +
                                        " model with this config.json, got " + list);
  }
  std::ranges::sort(outputs_, {}, [](const Output& o) { return o.report.tensor.name; });
}

}  // namespace diffattn::convert
