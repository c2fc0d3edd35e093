// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/run_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>

#include "diffattn/nn/presets.h"
#include "train/sections.h"

namespace diffattn::train {
namespace {

constexpr double kHuge = std::numeric_limits<double>::max();
constexpr int64_t kMany = int64_t{1} << 40;
constexpr int64_t kTaskMost = int64_t{1} << 24;

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
  std::vector<std::string> choices;  // empty: anything
};
/// Tasks with both read some keys only where their texts are generated, or come from files.
enum class Texts { kAny, kGenerated, kRead };
struct Field {
  const char* key;
  std::variant<IntField, DoubleField, TextField, bool*> target;
  Texts texts = Texts::kAny;
};

std::vector<Field> fields(RunConfig& c) {
  auto& m = c.model;
  auto& d = c.data;
  auto& t = c.train;
  return {
      {"task", TextField{&c.task, {"lm", "needle", "recall", "classify", "summarize"}}},
      {"seed", IntField{&c.seed, 0, std::numeric_limits<int64_t>::max()}},
      {"model.attention", TextField{&m.attention, nn::preset_names()}},
      {"model.vocab_size", IntField{&m.vocab_size, 0, 1 << 24}},
      {"model.hidden_size", IntField{&m.hidden_size, 1, 1 << 20}},
      {"model.intermediate_size", IntField{&m.intermediate_size, 0, 1 << 22}},
      {"model.num_hidden_layers", IntField{&m.num_hidden_layers, 1, 4096}},
      {"model.num_attention_heads", IntField{&m.num_attention_heads, 1, 4096}},
      {"model.num_key_value_heads", IntField{&m.num_key_value_heads, 0, 4096}},
      {"model.head_dim", IntField{&m.head_dim, 0, 1024}},
      {"model.max_position_embeddings", IntField{&m.max_position_embeddings, 0, kMany}},
      {"model.rms_norm_eps", DoubleField{&m.rms_norm_eps, 0.0, 1.0}},
      {"model.rope_theta", DoubleField{&m.rope_theta, 1.0, 1e12}},
      {"model.initializer_range", DoubleField{&m.initializer_range, 0.0, 10.0}},
      {"model.lambda_std_dev", DoubleField{&m.lambda_std_dev, 0.0, 10.0}},
      {"model.tie_word_embeddings", &m.tie_word_embeddings},
      {"model.head_norm", &m.head_norm},
      {"model.lambda_init", DoubleField{&m.lambda_init, -1.0, 10.0}},
      {"data.train", TextField{&d.train, {}}, Texts::kRead},
      {"data.valid", TextField{&d.valid, {}}, Texts::kRead},
      {"data.valid_fraction", DoubleField{&d.valid_fraction, 0.0, 0.5}, Texts::kRead},
      {"data.tokenizer", TextField{&d.tokenizer, {}}, Texts::kRead},
      {"data.skip_bad", &d.skip_bad, Texts::kRead},
      {"needle.length", IntField{&c.needle.length, 2, kTaskMost}},
      {"needle.needles", IntField{&c.needle.needles, 1, kTaskMost}},
      {"needle.min_needles", IntField{&c.needle.min_needles, 0, kTaskMost}},
      {"needle.asked", IntField{&c.needle.asked, 1, kTaskMost}},
      {"needle.questions", IntField{&c.needle.questions, 1, kTaskMost}},
      {"needle.keys", IntField{&c.needle.keys, 1, kTaskMost}},
      {"needle.values", IntField{&c.needle.values, 2, kTaskMost}},
      {"needle.noise", IntField{&c.needle.noise, 1, kTaskMost}},
      {"curriculum.steps", IntField{&c.curriculum.steps, 0, kMany}},
      {"curriculum.length", IntField{&c.curriculum.length, 2, kTaskMost}},
      {"curriculum.growth_steps", IntField{&c.curriculum.growth_steps, 0, kMany}},
      {"recall.pairs", IntField{&c.recall.pairs, 1, kTaskMost}},
      {"recall.distractors", IntField{&c.recall.distractors, 0, kTaskMost}},
      {"recall.questions", IntField{&c.recall.questions, 1, kTaskMost}},
      {"recall.key_parts", IntField{&c.recall.key_parts, 1, kTaskMost}},
      {"recall.values", IntField{&c.recall.values, 2, kTaskMost}},
      {"classify.backbone", TextField{&c.classify.backbone, {"decoder", "encoder"}}},
      {"classify.pooling", TextField{&c.classify.pooling, {"cls", "last", "mean"}}},
      {"classify.head_size", IntField{&c.classify.head_size, 0, 1 << 20}},
      {"classify.dropout", DoubleField{&c.classify.dropout, 0.0, 0.99}},
      {"classify.class_weights", TextField{&c.classify.class_weights, {"none", "balanced"}},
       Texts::kRead},
      {"classify.classes", IntField{&c.classify.text.classes, 2, 1 << 16}, Texts::kGenerated},
      {"classify.length", IntField{&c.classify.text.length, 1, kTaskMost}, Texts::kGenerated},
      {"classify.signal", IntField{&c.classify.text.signal, 1, kTaskMost}, Texts::kGenerated},
      {"classify.misleading", IntField{&c.classify.text.misleading, 0, kTaskMost},
       Texts::kGenerated},
      {"classify.words_per_class", IntField{&c.classify.text.words_per_class, 1, 1 << 16},
       Texts::kGenerated},
      {"classify.noise", IntField{&c.classify.text.noise, 1, kTaskMost}, Texts::kGenerated},
      {"summarize.decoder_layers", IntField{&c.summarize.decoder_layers, 0, 4096}},
      {"summarize.max_summary", IntField{&c.summarize.max_summary, 1, kTaskMost}, Texts::kRead},
      {"summarize.sentences", IntField{&c.summarize.select.sentences, 1, 1 << 16},
       Texts::kGenerated},
      {"summarize.selected", IntField{&c.summarize.select.selected, 1, 1 << 16}, Texts::kGenerated},
      {"summarize.words", IntField{&c.summarize.select.words, 1, 1 << 16}, Texts::kGenerated},
      {"summarize.cues", IntField{&c.summarize.select.cues, 2, 1 << 16}, Texts::kGenerated},
      {"summarize.vocabulary", IntField{&c.summarize.select.vocabulary, 1, kTaskMost},
       Texts::kGenerated},
      {"train.steps", IntField{&t.steps, 1, kMany}},
      {"train.batch_size", IntField{&t.batch_size, 1, 1 << 20}},
      {"train.accumulate", IntField{&t.accumulate, 1, 1 << 20}},
      {"train.seq_len", IntField{&t.seq_len, 2, 1 << 24}},
      {"train.learning_rate", DoubleField{&t.learning_rate, 0.0, 10.0}},
      {"train.final_fraction", DoubleField{&t.final_fraction, 0.0, 1.0}},
      {"train.warmup_steps", IntField{&t.warmup_steps, -1, kMany}},
      {"train.schedule", TextField{&t.schedule, {"cosine", "linear", "constant"}}},
      {"train.lambda_warmup_steps", IntField{&t.lambda_warmup_steps, 0, kMany}},
      {"train.beta1", DoubleField{&t.beta1, 0.0, 0.999999}},
      {"train.beta2", DoubleField{&t.beta2, 0.0, 0.999999}},
      {"train.eps", DoubleField{&t.eps, 0.0, 1.0}},
      {"train.weight_decay", DoubleField{&t.weight_decay, 0.0, 10.0}},
      {"train.clip_norm", DoubleField{&t.clip_norm, 0.0, kHuge}},
      {"train.label_smoothing", DoubleField{&t.label_smoothing, 0.0, 0.999}},
      {"train.z_loss", DoubleField{&t.z_loss, 0.0, 10.0}},
      {"train.sparsity_weight", DoubleField{&t.sparsity_weight, 0.0, kHuge}},
      {"train.focus_weight", DoubleField{&t.focus_weight, 0.0, kHuge}},
      {"train.dtype", TextField{&t.dtype, {"float32", "bfloat16"}}},
      {"train.device", TextField{&t.device, {}}},
      {"train.activation_checkpointing", &t.activation_checkpointing},
      {"train.keep_attention", TextField{&t.keep_attention, {"nothing", "sums", "results"}}},
      {"train.eval_every", IntField{&t.eval_every, 0, kMany}},
      {"train.eval_batches", IntField{&t.eval_batches, 1, kMany}},
      {"train.log_every", IntField{&t.log_every, 1, kMany}},
      {"train.stats_every", IntField{&t.stats_every, 0, kMany}},
      {"train.checkpoint_every", IntField{&t.checkpoint_every, 1, kMany}},
      {"train.keep_checkpoints", IntField{&t.keep_checkpoints, 2, 1 << 20}},
      {"train.peak_tflops", DoubleField{&t.peak_tflops, 0.0, 1e9}},
      {"train.max_skipped_steps", IntField{&t.max_skipped_steps, 1, kMany}},
  };
}

/// Letters put in, left out, replaced, or two of them swapped.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j + 1] + 1, row[j] + 1, above[j] + (a[i] == b[j] ? 0 : 1)});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
      }
    }
    before = std::exchange(above, row);
  }
  return above.back();
}

struct KeyParts {
  std::string section, name;
};

KeyParts parts_of(const std::string& key) {
  const size_t dot = key.find('.');
  if (dot == std::string::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

/// How far `known` is from what was written; none where nobody would take one for the other. A
/// name may be written right in the wrong section.
std::optional<size_t> key_distance(const std::string& written, const std::string& known) {
  const KeyParts ours = parts_of(written), theirs = parts_of(known);
  const size_t section = edit_distance(ours.section, theirs.section);
  const size_t name = edit_distance(ours.name, theirs.name);
  if (name > ours.name.size() / 3) return {};
  if (name > 0 && section + name > written.size() / 3) return {};
  return section + name;
}

[[noreturn]] void fail_unknown(const std::string& key, const std::vector<Field>& known) {
  std::string hint;
  size_t least = std::numeric_limits<size_t>::max();
  for (const Field& field : known) {
    const auto distance = key_distance(key, field.key);
    if (!distance || *distance >= least) continue;
    least = *distance;
    hint = fmt::format("; the nearest is {}", field.key);
  }
  throw ConfigError(fmt::format("{}: no such key{}", key, hint));
}

Field field_of(RunConfig& config, const std::string& key) {
  const auto known = fields(config);
  const auto field = std::ranges::find_if(known, [&](const Field& f) { return key == f.key; });
  if (field == known.end()) fail_unknown(key, known);
  return *field;
}

/// False for the keys of other tasks, and for those of texts that are not generated, or not read.
bool is_read(const RunConfig& config, const Field& field) {
  const std::string section = parts_of(field.key).section;
  if (section == "needle" || section == "recall" || section == "classify" ||
      section == "summarize") {
    if (config.task != section) return false;
  }
  if (section == "curriculum") return config.task == "needle" && config.curriculum.steps > 0;
  const bool read = config.task == "lm" || !config.data.train.empty();
  return field.texts == Texts::kAny || (field.texts == Texts::kRead) == read;
}

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
      throw ConfigError(
          fmt::format("{}: expected one of {}, got '{}'", key, fmt::join(f.choices, ", "), text));
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
  void operator()(bool* value) const {
    if (text != "true" && text != "false") {
      throw ConfigError(fmt::format("{}: expected true or false, got '{}'", key, text));
    }
    *value = text == "true";
  }
};

/// What a run file holds for a field.
struct TypeName {
  const char* operator()(const IntField&) const { return "an integer"; }
  const char* operator()(const DoubleField&) const { return "a number"; }
  const char* operator()(const TextField&) const { return "a string in quotes"; }
  const char* operator()(const bool*) const { return "true or false"; }
};

/// A TOML basic string.
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
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
};

void require(bool holds, const std::string& message) {
  if (!holds) throw ConfigError(message);
}

/// The first haystacks must hold as many needles and may not be longer than the others.
void check_curriculum(int64_t length, data::NeedleOptions needle) {
  require(length <= needle.length,
          fmt::format("curriculum.length: expected at most needle.length = {}, got {}",
                      needle.length, length));
  needle.length = length;
  with_section("curriculum", [&] { return data::needle_task(needle); });
}

/// Files that a task would not read are refused: the numbers would not be of them.
void check_data(const RunConfig& config) {
  const bool sequences = config.task == "needle" || config.task == "recall";
  require(!sequences || config.data.train.empty(),
          fmt::format("data.train: expected none with task = \"{}\", which is generated, got '{}'",
                      config.task, config.data.train));
  require(config.task == "lm" || !config.data.train.empty() || config.data.valid.empty(),
          fmt::format("data.valid: expected none without data.train with task = \"{}\", which is "
                      "then generated, got '{}'",
                      config.task, config.data.valid));
}

}  // namespace

void RunConfig::set(const std::string& key, const std::string& value) {
  std::visit(Setter{key, value}, field_of(*this, key).target);
}

void RunConfig::set(const io::Setting& setting) {
  const Field field = field_of(*this, setting.key);
  if (setting.is_string != std::holds_alternative<TextField>(field.target)) {
    throw ConfigError(fmt::format(
        "{}: expected {}, got {}", setting.key, std::visit(TypeName{}, field.target),
        setting.is_string ? "the string " + toml_string(setting.value) : setting.value));
  }
  std::visit(Setter{setting.key, setting.value}, field.target);
}

void RunConfig::set_all(const std::vector<std::pair<std::string, std::string>>& settings) {
  for (const auto& [key, value] : settings) set(key, value);
}

void RunConfig::resolve() {
  Model& m = model;
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
  if (task == "needle") {
    train.seq_len = with_section("needle", [&] { return data::needle_task(needle)->length(); });
    if (curriculum.steps > 0) check_curriculum(curriculum.length, needle);
  }
  if (task == "recall") {
    train.seq_len = with_section("recall", [&] { return data::recall_task(recall)->length(); });
  }
  check_data(*this);
  if (task == "classify" && data.train.empty()) train.seq_len = classify.text.length;
  if (task == "summarize" && data.train.empty()) {
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
          "train.activation_checkpointing: expected false with train.sparsity_weight or "
          "train.focus_weight, which read what the layers computed, got true");
  require(train.activation_checkpointing || train.keep_attention == Train().keep_attention,
          fmt::format("train.keep_attention: expected train.activation_checkpointing = true, which "
                      "reads it, got '{}' without",
                      train.keep_attention));
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
