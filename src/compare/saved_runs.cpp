// SPDX-License-Identifier: Apache-2.0
#include "compare/saved_runs.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "io/hash.h"

namespace diffattn::compare {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
constexpr size_t kMaxNameBytes = 160;  // file systems allow 255, of which seed and suffix need some

/// JSON has no numbers that are not finite; they become texts.
Json saved(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::to_string(value));
}

double number(const Json& value) {
  return value.is_string() ? std::strtod(value.get<std::string>().c_str(), nullptr)
                           : value.get<double>();
}

Json saved_outliers(const Outliers& o) {
  return {saved(o.top1), saved(o.top10), saved(o.top100), saved(o.median)};
}

Outliers loaded_outliers(const Json& json) {
  return {number(json.at(0)), number(json.at(1)), number(json.at(2)), number(json.at(3))};
}

Json key_json(const RunKey& key) {
  return {{"version", kRunVersion},   {"config", key.config},  {"source", key.source},
          {"data", key.data},         {"test", key.test},      {"software", key.software},
          {"measured", key.measured}, {"samples", key.samples}};
}

Json cell_json(const NeedleCell& c) {
  return {
      c.needles,     c.asked,           c.depth,         c.right,        c.questions,
      c.first_right, c.first_questions, saved(c.answer), saved(c.noise), saved(c.strongest_answer)};
}

NeedleCell cell_from(const Json& json) {
  NeedleCell c;
  c.needles = json.at(0);
  c.asked = json.at(1);
  c.depth = json.at(2);
  c.right = json.at(3);
  c.questions = json.at(4);
  c.first_right = json.at(5);
  c.first_questions = json.at(6);
  c.answer = number(json.at(7));
  c.noise = number(json.at(8));
  c.strongest_answer = number(json.at(9));
  return c;
}

Json result_json(const RunResult& r) {
  Json curve = Json::array(), metrics = Json::array(), needles = Json::array();
  for (const CurvePoint& p : r.curve) {
    curve.push_back(
        Json::array({p.step, saved(p.loss), saved(p.valid_loss), saved(p.valid_accuracy)}));
  }
  for (const auto& [name, value] : r.metrics) metrics.push_back(Json::array({name, saved(value)}));
  for (const NeedleCell& cell : r.needles) needles.push_back(cell_json(cell));
  return {{"seed", r.seed},
          {"curve", curve},
          {"loss", saved(r.loss)},
          {"valid", {saved(r.valid.loss_sum), r.valid.right, r.valid.tokens, r.valid.seconds}},
          {"metrics", metrics},
          {"needles", needles},
          {"attention_logits", saved_outliers(r.attention_logits)},
          {"hidden_states", saved_outliers(r.hidden_states)},
          {"train_seconds", r.train_seconds},
          {"machine", r.machine},
          {"finite", r.finite}};
}

RunResult result_from(const Json& json) {
  RunResult r;
  r.seed = json.at("seed");
  for (const Json& p : json.at("curve")) {
    r.curve.push_back({p.at(0), number(p.at(1)), number(p.at(2)), number(p.at(3))});
  }
  r.loss = number(json.at("loss"));
  const Json& valid = json.at("valid");
  r.valid.loss_sum = number(valid.at(0));
  r.valid.right = valid.at(1);
  r.valid.tokens = valid.at(2);
  r.valid.seconds = number(valid.at(3));
  for (const Json& m : json.at("metrics")) {
    r.metrics.emplace_back(m.at(0).get<std::string>(), number(m.at(1)));
  }
  for (const Json& cell : json.at("needles")) r.needles.push_back(cell_from(cell));
  r.attention_logits = loaded_outliers(json.at("attention_logits"));
  r.hidden_states = loaded_outliers(json.at("hidden_states"));
  r.train_seconds = json.at("train_seconds");
  r.machine = json.at("machine");
  r.finite = json.at("finite");
  return r;
}

}  // namespace

std::string file_name_of(const std::string& model) {
  std::string name = model;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
  }
  if (name == model) return name;
  return fmt::format("{}-{:016x}", name.substr(0, kMaxNameBytes), io::hash64(model));
}

std::string runs_to_text(const std::vector<const RunResult*>& runs) {
  Json all = Json::array();
  for (const RunResult* run : runs) all.push_back(result_json(*run));
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<RunResult> runs_from_text(const std::string& text) {
  std::vector<RunResult> runs;
  for (const Json& run : Json::parse(text)) runs.push_back(result_from(run));
  return runs;
}

void save_run(const std::string& path, const RunKey& key, const RunResult& result) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  const Json all{{"key", key_json(key)}, {"result", result_json(result)}};
  io::write_text(path, all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<RunResult> load_run(const std::string& path, const RunKey& key) {
  if (!std::filesystem::exists(path)) return {};
  try {
    const Json all = Json::parse(io::read_text(path, kMaxBytes));
    // Both sides pass through the same text, in which bytes that are no UTF-8 are replaced.
    const std::string wanted = key_json(key).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (all.at("key").dump() != wanted) return {};
    RunResult result = result_from(all.at("result"));
    if (result.curve.empty()) throw io::Error(path, "curve: expected at least one point, got none");
    return result;
  } catch (const Json::exception& error) {
    throw io::Error(path, std::string("expected the result of a run, got: ") + error.what());
  }
}

}  // namespace diffattn::compare
