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

using Shape = std::vector<std::int64_t>;

/// What a conversion is going to do: every tensor of the source is taken or left, with a reason,
/// before the first one is written.
class Plan {
 public:
  Plan(const Model& model, const io::TensorSource& source, const Options& options);

  const Model& model() const { return model_; }
  const io::TensorSource& source() const { return source_; }
  const Options& options() const { return options_; }

  bool has(const std::string& name) const { return actual_.contains(name); }
  /// A source tensor's actual name. It must be there, of a number type and of that shape, and
  /// counts as used.
  std::string take(const std::string& name, const Shape& shape);
  io::Dtype dtype(const std::string& name) const;
  /// First dimension of a source tensor; 0 of a number.
  std::int64_t rows_of(const std::string& name) const;

  void add(const std::string& name, const Shape& shape, io::Dtype dtype, const std::string& what,
           Recipe recipe, bool exact = true);
  /// take() and add() of a tensor that keeps its bytes.
  void copy(const std::string& name, const Shape& shape, const std::string& new_name);
  void copy(const std::string& name, const Shape& shape) { copy(name, shape, name); }
  /// take() and add() of rows [of a matrix or of a bias].
  void rows(const std::string& name, const Shape& shape, const std::string& new_name,
            std::vector<std::int64_t> rows, const std::string& what);

  void leave(const std::string& name, const std::string& why);
  void note(const std::string& text) { notes_.push_back(text); }
  void change(const std::string& key, const nlohmann::json& value) { changes_[key] = value; }

  /// Everything of the model but attention: embeddings, norms, feed-forward layers, head.
  void copy_rest();
  /// Leaves what may be left (rotary tables, the head of tied models); throws about other names
  /// that nobody took. Sorts the outputs by name.
  void finish();

  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<Left>& left() const { return left_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const nlohmann::json& changes() const { return changes_; }

  /// Names that nobody took or left so far.
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

/// The conversions. Each fills the plan but for finish().
void plan_microsoft_diffllama(Plan& plan);  // both ways, and legacy GQA
void plan_llama_to_v2(Plan& plan);
void plan_v2_to_llama(Plan& plan);
void plan_llama_to_diffllama(Plan& plan);
void plan_diffllama_to_llama(Plan& plan);
void plan_motif(Plan& plan);
void plan_phi4_flash(Plan& plan);

}  // namespace diffattn::convert
