// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/run_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <variant>

#include "io/settings.h"
#include "train/config_fields.h"
#include "train/sections.h"

namespace diffattn::train {

const std::vector<std::string>& task_names() {
  static const std::vector<std::string> names{"lm", "needle", "recall", "classify", "summarize"};
  return names;
}

const std::string& task_name(Task task) { return task_names().at(static_cast<size_t>(task)); }

std::optional<Task> find_task(std::string_view name) {
  const auto found = std::ranges::find(task_names(), name);
  if (found == task_names().end()) return std::nullopt;
  return static_cast<Task>(found - task_names().begin());
}

namespace {

template <class Number>
Number parse(const std::string& key, const std::string& text, const char* kind, Number min,
             Number max) {
  std::string digits = text.starts_with('+') ? text.substr(1) : text;
  std::erase(digits, '_');  // TOML writes 1_000
  Number value{};
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || stop != digits.data() + digits.size() || !(value >= min) ||
      !(value <= max)) {
    throw ConfigError(
        fmt::format("{}: expected {} in [{}, {}], got '{}'", key, kind, min, max, text));
  }
  return value;
}

struct Setter {
  const std::string &key, &text;

  void operator()(const IntField& f) const {
    *f.value = parse(key, text, "an integer", f.min, f.max);
  }
  void operator()(const DoubleField& f) const {
    *f.value = parse(key, text, "a number", f.min, f.max);
  }
  void operator()(const TextField& f) const {
    if (!f.choices.empty() && std::ranges::find(f.choices, text) == f.choices.end()) {
      fail_choice(f.choices);
    }
    const auto unwritable = [](unsigned char c) {
      return (c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7f;
    };
    if (const auto at = std::ranges::find_if(text, unwritable); at != text.end()) {
      throw ConfigError(
          fmt::format("{}: expected text, got the control character {:#04x} at byte {}", key,
                      static_cast<int>(*at), at - text.begin()));
    }
    *f.value = text;
  }
  void operator()(const TaskField& f) const {
    const auto task = find_task(text);
    if (!task) fail_choice(task_names());
    *f.value = *task;
  }
  void operator()(bool* value) const {
    if (text != "true" && text != "false") {
      throw ConfigError(fmt::format("{}: expected true or false, got '{}'", key, text));
    }
    *value = text == "true";
  }

  [[noreturn]] void fail_choice(const std::vector<std::string>& choices) const {
    throw ConfigError(
        fmt::format("{}: expected one of {}, got '{}'", key, fmt::join(choices, ", "), text));
  }
};

/// Returns the type of value that a run file must hold for a field.
struct TypeName {
  const char* operator()(const IntField&) const { return "an integer"; }
  const char* operator()(const DoubleField&) const { return "a number"; }
  const char* operator()(const TextField&) const { return "a string in quotes"; }
  const char* operator()(const TaskField&) const { return "a string in quotes"; }
  const char* operator()(const bool*) const { return "true or false"; }
};

/// Returns a TOML basic string.
std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default: out += c;
    }
  }
  return out + "\"";
}

struct Printer {
  std::string operator()(const IntField& f) const { return fmt::format("{}", *f.value); }
  std::string operator()(const DoubleField& f) const { return fmt::format("{}", *f.value); }
  std::string operator()(const TextField& f) const { return toml_string(*f.value); }
  std::string operator()(const TaskField& f) const { return toml_string(task_name(*f.value)); }
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
};

void require(bool holds, const std::string& message) {
  if (!holds) throw ConfigError(message);
}

/// Fills in the sizes of a new model.
void resolve_sizes(RunConfig::Model& m) {
  if (m.head_dim == 0) {
    require(
        m.hidden_size % m.num_attention_heads == 0,
        fmt::format("model.hidden_size: expected a multiple of num_attention_heads = {}, got {}",
                    m.num_attention_heads, m.hidden_size));
    m.head_dim = m.hidden_size / m.num_attention_heads;
  }
  if (m.num_key_value_heads == 0) m.num_key_value_heads = m.num_attention_heads;
  require(m.num_attention_heads % m.num_key_value_heads == 0,
          fmt::format("model.num_key_value_heads: expected a divisor of num_attention_heads = {}, "
                      "got {}",
                      m.num_attention_heads, m.num_key_value_heads));
  if (m.intermediate_size == 0) m.intermediate_size = (m.hidden_size * 8 / 3 + 63) / 64 * 64;
}

/// Throws if the first haystacks have no room for the needles or are longer than the last ones.
void check_curriculum(int64_t length, data::NeedleOptions needle) {
  require(length <= needle.length,
          fmt::format("curriculum.length: expected at most needle.length = {}, got {}",
                      needle.length, length));
  needle.length = length;
  with_section("curriculum", [&] { return data::needle_task(needle); });
}

/// Throws if the config names files that its task does not read: the user would take the results
/// for results on these files.
void check_data(const RunConfig& config) {
  const bool sequences = config.task == Task::kNeedle || config.task == Task::kRecall;
  require(!sequences || config.data.train.empty(),
          fmt::format("data.train: expected none, because task = \"{}\" generates its data, got "
                      "'{}'",
                      task_name(config.task), config.data.train));
  const bool reads_text = config.task == Task::kLanguageModel || !config.data.train.empty();
  require(reads_text || config.data.valid.empty(),
          fmt::format("data.valid: expected none, because task = \"{}\" without data.train "
                      "generates its data, got '{}'",
                      task_name(config.task), config.data.valid));
}

}  // namespace

void RunConfig::set(const std::string& key, const std::string& value) {
  std::visit(Setter{key, value}, field_of(*this, key).target);
}

void RunConfig::set(const io::Setting& setting) {
  const Field field = field_of(*this, setting.key);
  const bool is_text = std::holds_alternative<TextField>(field.target) ||
                       std::holds_alternative<TaskField>(field.target);
  if (setting.is_string != is_text) {
    throw ConfigError(fmt::format(
        "{}: expected {}, got {}", setting.key, std::visit(TypeName{}, field.target),
        setting.is_string ? "the string " + toml_string(setting.value) : setting.value));
  }
  std::visit(Setter{setting.key, setting.value}, field.target);
}

void RunConfig::set_all(const std::vector<std::pair<std::string, std::string>>& settings) {
  for (const auto& [key, value] : settings) set(key, value);
}

int64_t RunConfig::Train::groups_of(int64_t processes) const {
  if (processes % context_parallel != 0) {
    throw ConfigError(
        fmt::format("train.context_parallel: expected a divisor of the {} processes, got {}",
                    processes, context_parallel));
  }
  return processes / context_parallel;
}

void RunConfig::resolve() {
  Model& m = model;
  if (m.from.empty()) {
    resolve_sizes(m);
  } else {
    require(task != Task::kClassify && task != Task::kSummarize,
            fmt::format("model.from: expected none for task = \"{}\", which no language model "
                        "does, got '{}'",
                        task_name(task), m.from));
  }
  if (task == Task::kNeedle) {
    train.seq_len = with_section("needle", [&] { return data::needle_task(needle)->length(); });
    if (curriculum.steps > 0) check_curriculum(curriculum.length, needle);
  }
  if (task == Task::kRecall) {
    train.seq_len = with_section("recall", [&] { return data::recall_task(recall)->length(); });
  }
  check_data(*this);
  if (task == Task::kClassify && data.train.empty()) train.seq_len = classify.text.length;
  if (task == Task::kSummarize && data.train.empty()) {
    train.seq_len = summarize.select.sentences * (summarize.select.words + 2);
  }
  if (m.max_position_embeddings == 0) m.max_position_embeddings = train.seq_len;
  require(
      m.max_position_embeddings >= train.seq_len,
      fmt::format("model.max_position_embeddings: expected at least the {} tokens of a row, got "
                  "{}",
                  train.seq_len, m.max_position_embeddings));
  require(!train.activation_checkpointing ||
              (train.sparsity_weight == 0.0 && train.focus_weight == 0.0),
          "train.activation_checkpointing: expected false, because train.sparsity_weight and "
          "train.focus_weight need the activations of every layer, got true");
  require(
      train.activation_checkpointing || train.keep_attention == Train().keep_attention,
      fmt::format("train.keep_attention: expected train.activation_checkpointing = true, because "
                  "the key has no effect without it, got '{}' and false",
                  train.keep_attention));
  require(train.context_parallel == 1 || (task != Task::kClassify && task != Task::kSummarize),
          fmt::format("train.context_parallel: expected 1 for task = \"{}\", because only language "
                      "models share the tokens of a row, got {}",
                      task_name(task), train.context_parallel));
  require(
      train.context_parallel == 1 || (train.sparsity_weight == 0.0 && train.focus_weight == 0.0),
      fmt::format("train.context_parallel: expected 1, because train.sparsity_weight and "
                  "train.focus_weight need whole maps, got {}",
                  train.context_parallel));
  require(train.seq_len >= 2 * train.context_parallel,
          fmt::format("train.context_parallel: expected at most half of the {} tokens of a row, "
                      "got {}",
                      train.seq_len, train.context_parallel));
  require(train.lambda_warmup_steps < train.steps,
          fmt::format("train.lambda_warmup_steps: expected fewer than train.steps ({}), got {}",
                      train.steps, train.lambda_warmup_steps));
  if (train.warmup_steps < 0) train.warmup_steps = std::min<int64_t>(100, train.steps / 20);
}

bool RunConfig::reads(const std::string& key) const {
  RunConfig copy = *this;
  return is_read(*this, field_of(copy, key));
}

std::string RunConfig::to_toml() const {
  RunConfig copy = *this;
  std::string text, section;
  for (const Field& field : fields(copy)) {
    if (!is_read(*this, field)) continue;
    const KeyParts key = parts_of(field.key);
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    text += fmt::format("{} = {}\n", key.name, std::visit(Printer{}, field.target));
  }
  return text;
}

}  // namespace diffattn::train
