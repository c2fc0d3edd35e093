// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "diffattn/train/run_config.h"

namespace diffattn::train {

struct IntField {
  int64_t* value;
  int64_t min, max;
};
struct DoubleField {
  double* value;
  double min, max;
};
struct TextField {
  std::string* value;
  std::vector<std::string> choices;  // empty: any text
};
struct TaskField {
  Task* value;
};

/// A key of a run file and the member of RunConfig that it sets.
struct Field {
  /// Tasks that can both generate and read their texts use some keys for one of the two only.
  enum class Texts { kAny, kGenerated, kRead };

  const char* key;
  std::variant<IntField, DoubleField, TextField, TaskField, bool*> target;
  Texts texts = Texts::kAny;
};

/// Returns all keys, in the order in which run files list them.
std::vector<Field> fields(RunConfig& config);

/// Returns the field of `key`. Throws ConfigError for an unknown key, naming the nearest known one.
Field field_of(RunConfig& config, const std::string& key);

/// True if a run with this config reads the field: not a key of another task, nor one of texts that
/// the task reads instead of generating, or the other way round.
bool is_read(const RunConfig& config, const Field& field);

struct KeyParts {
  std::string section, name;
};
/// Splits "train.steps" into "train" and "steps". Keys without a dot have an empty section.
KeyParts parts_of(const std::string& key);

}  // namespace diffattn::train
