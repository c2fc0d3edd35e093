// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "convert/model.h"
#include "convert/recipe.h"

namespace diffattn::convert {

using Shape = std::vector<int64_t>;

/// The plan of a conversion. It uses every tensor of the source or names a reason to leave it out,
/// before the first tensor is written.
class Plan {
 public:
  Plan(const Model& model, const io::TensorSource& source, const Options& options);

  const Model& model() const { return model_; }
  const io::TensorSource& source() const { return source_; }
  const Options& options() const { return options_; }

  bool has(const std::string& name) const { return actual_.contains(name); }
  /// Marks a source tensor as used and returns its actual name. Throws io::Error if it is missing,
  /// not of a floating-point type, or of another shape.
  std::string take(const std::string& name, const Shape& shape);
  io::Dtype dtype(const std::string& name) const;
  /// Returns the first dimension of a source tensor, or 0 for a scalar.
  int64_t rows_of(const std::string& name) const;

  void add(const std::string& name, const Shape& shape, io::Dtype dtype, const std::string& what,
           Recipe recipe, bool exact = true);
  /// Takes a tensor and adds it unchanged.
  void copy(const std::string& name, const Shape& shape, const std::string& new_name);
  void copy(const std::string& name, const Shape& shape) { copy(name, shape, name); }
  /// Takes a matrix or bias and adds the given rows of it.
  void rows(const std::string& name, const Shape& shape, const std::string& new_name,
            std::vector<int64_t> rows, const std::string& what);

  void leave(const std::string& name, const std::string& why);
  void note(const std::string& text) { notes_.push_back(text); }
  void change(const std::string& key, const nlohmann::json& value) { changes_[key] = value; }

  /// Copies everything but attention: embeddings, norms, feed-forward layers, head.
  void copy_rest();
  /// Leaves out rotary tables and the head of tied models, then sorts the outputs by name. Throws
  /// io::Error if a source tensor is neither used nor left out.
  void finish();

  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<Left>& left() const { return left_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const nlohmann::json& changes() const { return changes_; }

  /// Returns the names that are neither used nor left out.
  std::vector<std::string> unused() const;

 private:
  const Model& model_;
  const io::TensorSource& source_;
  const Options& options_;
  std::map<std::string, std::string> actual_;  // name after renaming -> name in the source
  std::set<std::string> used_;
  std::vector<Output> outputs_;
  std::vector<Left> left_;
  std::vector<std::string> notes_;
  nlohmann::json changes_ = nlohmann::json::object();
};

/// The conversions. Each fills the plan; the caller then calls finish().
void plan_microsoft_diffllama(Plan& plan);  // both directions, and legacy GQA
void plan_llama_to_v2(Plan& plan);
void plan_v2_to_llama(Plan& plan);
void plan_llama_to_diffllama(Plan& plan);
void plan_diffllama_to_llama(Plan& plan);
void plan_motif(Plan& plan);             // into attentions of the family
void plan_phi4_flash(Plan& plan);        // the same
void plan_whole_motif(Plan& plan);       // all layers, under their names
void plan_whole_phi4_flash(Plan& plan);  // the same

}  // namespace diffattn::convert
