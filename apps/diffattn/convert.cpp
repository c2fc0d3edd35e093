// SPDX-License-Identifier: Apache-2.0
//
// diffattn convert: a model folder from one layout to another.

#include "diffattn/convert/convert.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "train/stop_signal.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/progress.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {
namespace {

using Json = nlohmann::ordered_json;

struct ConvertArguments {
  std::string source, target, from, to, pairing = "paired", report;
  std::vector<std::string> renames;
  std::uint64_t max_shard_mib = std::uint64_t{50} << 10;
  std::optional<std::uint64_t> seed;
  bool attention_only = false, force = false, dry_run = false, follow_links = false, json = false;
};

convert::Options convert_options_of(const ConvertArguments& arguments) {
  convert::Options options;
  if (!arguments.from.empty()) options.from = convert::parse_format(arguments.from);
  options.to = *convert::parse_format(arguments.to);
  if (arguments.pairing == "legacy_naive") options.pairing = convert::GqaPairing::kLegacyNaive;
  options.attention_only = arguments.attention_only;
  options.force = arguments.force;
  options.dry_run = arguments.dry_run;
  if (arguments.follow_links) options.symlinks = io::Symlinks::kFollow;
  options.max_shard_bytes = arguments.max_shard_mib << 20;
  options.seed = arguments.seed.value_or(0);
  for (const std::string& rename : arguments.renames) {
    const size_t sign = rename.find('=');
    options.renames.emplace_back(rename.substr(0, sign), rename.substr(sign + 1));
  }
  return options;
}

Json convert_json(const convert::Report& report, const ConvertArguments& arguments) {
  Json tensors = Json::array(), left = Json::array();
  for (const convert::TensorReport& item : report.tensors) {
    tensors.push_back(Json{{"name", item.tensor.name},
                           {"source", item.source.empty() ? Json() : Json(item.source)},
                           {"what", item.what},
                           {"exact", item.exact},
                           {"dtype", io::dtype_name(item.tensor.dtype)},
                           {"shape", item.tensor.shape}});
  }
  for (const convert::Left& item : report.left) {
    left.push_back(Json{{"name", item.name}, {"why", item.why}});
  }
  return Json{{"from", convert::format_name(report.from)},
              {"to", convert::format_name(report.to)},
              {"source", arguments.source},
              {"target", arguments.target},
              {"bytes", report.bytes},
              {"weights", report.weights},
              {"files", report.files},
              {"left", left},
              {"notes", report.notes},
              {"tensors", tensors}};
}

/// Names of files may be any bytes.
std::string json_text(const convert::Report& report, const ConvertArguments& arguments) {
  const Json json = convert_json(report, arguments);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// "model.layers.3.mlp.up_proj.weight" -> "model.layers.*.mlp.up_proj.weight"
std::string without_layer(const std::string& name) {
  const std::string mark = ".layers.";
  const size_t begin = name.find(mark);
  if (begin == std::string::npos) return name;
  const size_t number = begin + mark.size(), end = name.find('.', number);
  return end == std::string::npos ? name : name.substr(0, number) + "*" + name.substr(end);
}

struct ConvertRow {
  std::string name, what, type;
  size_t count = 0;
};

/// One line per tensor of a layer, however many layers there are.
void print_conversion(const convert::Report& report, const ConvertArguments& arguments) {
  std::vector<ConvertRow> rows;
  size_t width = 6, what_width = 4;
  for (const convert::TensorReport& item : report.tensors) {
    ConvertRow row;
    row.name = without_layer(item.tensor.name);
    row.what = item.what + (item.exact ? "" : ", rounded once");
    row.type =
        fmt::format("{} {}", io::dtype_name(item.tensor.dtype), io::shape_text(item.tensor.shape));
    const auto same = [&](const ConvertRow& other) {
      return other.name == row.name && other.what == row.what && other.type == row.type;
    };
    auto found = std::find_if(rows.begin(), rows.end(), same);
    if (found == rows.end()) found = rows.insert(rows.end(), row);
    ++found->count;
    width = std::max(width, row.name.size());
    what_width = std::max(what_width, row.what.size());
  }
  fmt::print("{:<{}}  {:>5}  {:<{}}  {}\n", "tensor", width, "count", "what", what_width,
             "type and shape");
  for (const ConvertRow& row : rows) {
    fmt::print("{:<{}}  {:>5}  {:<{}}  {}\n", row.name, width, row.count, row.what, what_width,
               row.type);
  }
  for (const std::string& file : report.files)
    fmt::print("{:<{}}  {:>5}  carried over\n", file, width, 1);
  std::vector<ConvertRow> left;
  for (const convert::Left& item : report.left) {
    const std::string name = without_layer(item.name);
    const auto same = [&](const ConvertRow& o) { return o.name == name && o.what == item.why; };
    auto found = std::find_if(left.begin(), left.end(), same);
    if (found == left.end()) found = left.insert(left.end(), {name, item.why, "", 0});
    ++found->count;
  }
  for (const ConvertRow& row : left) {
    fmt::print("{:<{}}  {:>5}  left: {}\n", row.name, width, row.count, row.what);
  }
  for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
  fmt::print("{} to {}: {} tensors, {:.1f} MiB{} {}\n", convert::format_name(report.from),
             convert::format_name(report.to), report.tensors.size(),
             static_cast<double>(report.bytes) / (1 << 20),
             arguments.dry_run ? ", nothing written to" : " in", arguments.target);
}

/// What a source is may stand in its config.json alone: a dry run says.
void check_source(const ConvertArguments& arguments, convert::Options options) {
  if (!arguments.attention_only && !arguments.seed) return;
  options.dry_run = true;
  const convert::Format from = convert::convert(arguments.source, arguments.target, options).from;
  const bool has_more = from == convert::Format::kMotif || from == convert::Format::kPhi4Flash;
  if (arguments.attention_only && !has_more) {
    throw io::Error(arguments.source,
                    fmt::format("expected a motif or phi4_flash model for --attention-only, got {}",
                                convert::format_name(from)));
  }
  // Only a Llama that becomes a DiffLlama is given something new.
  const bool gets_new = from == convert::Format::kLlama && arguments.to == "diffllama";
  if (arguments.seed && !gets_new) {
    throw io::Error(arguments.source,
                    fmt::format("expected a llama model to diffllama for --seed, got {} to {}",
                                convert::format_name(from), arguments.to));
  }
}

/// A report that cannot be written should be known before the conversion. One inside the new folder
/// is known after it alone.
void check_report(const ConvertArguments& arguments) {
  namespace fs = std::filesystem;
  if (arguments.report.empty()) return;
  const auto folder_of = [](const fs::path& file) {
    return fs::weakly_canonical(fs::absolute(file)).parent_path();
  };
  if (folder_of(arguments.report) == folder_of(fs::path(arguments.target) / "report")) return;
  const io::AtomicFile probe(arguments.report);
}

int run_convert(const ConvertArguments& arguments) {
  convert::Options options = convert_options_of(arguments);
  check_report(arguments);
  check_source(arguments, options);
  const train::StopSignal signal;
  PercentBar bar("convert");
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (signal.received() != 0) throw io::Error(arguments.target, "stopped; nothing was written");
    bar.show(done, total);
  };
  const convert::Report report = convert::convert(arguments.source, arguments.target, options);
  bar.clear();
  if (!arguments.report.empty()) io::write_text(arguments.report, json_text(report, arguments));
  if (arguments.json) {
    fmt::print("{}", json_text(report, arguments));
  } else {
    print_conversion(report, arguments);
  }
  return 0;
}

}  // namespace

Run add_convert(CLI::App& app) {
  auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* verb = app.add_subcommand("convert", "A model folder from one layout to another");
  verb->add_option("source", arguments->source, "model folder to read")->required();
  verb->add_option("target", arguments->target, "model folder to make")->required();
  verb->add_option(
          "--from", arguments->from,
          "microsoft, microsoft_v2, diffllama, llama, motif or phi4_flash (as config.json says)")
      ->check(CLI::IsMember(convert::format_names()));
  verb->add_option("--to", arguments->to, "microsoft, microsoft_v2, diffllama, llama or diffattn")
      ->required()
      ->check(CLI::IsMember(convert::format_names()));
  verb->add_option("--gqa", arguments->pairing,
                   "pairing a microsoft model was trained with: paired or legacy_naive (paired)")
      ->check(CLI::IsMember({"paired", "legacy_naive"}));
  verb->add_flag("--attention-only", arguments->attention_only,
                 "of motif and phi4_flash: keep the attention layers");
  verb->add_option("--rename", arguments->renames, "OLD=NEW: a part of tensor names, repeatable")
      ->check([](const std::string& text) {
        return text.find('=') == std::string::npos ? "expected OLD=NEW, got " + text : "";
      })
      ->allow_extra_args(false);
  verb->add_option("--max-shard-mib", arguments->max_shard_mib, "size of weight files (51200)")
      ->check(integer_in(1, int64_t{1} << 40));
  verb->add_option("--seed", arguments->seed, "of a Llama's new second maps (0)")
      ->check(any_seed());
  verb->add_flag("--follow-links", arguments->follow_links,
                 "read files behind symbolic links, as download caches have them");
  verb->add_flag("--force", arguments->force, "replace a model folder that exists");
  verb->add_flag("--dry-run", arguments->dry_run, "check and report, write nothing");
  verb->add_option("--report", arguments->report, "also write the JSON report to this file");
  verb->add_flag("--json", arguments->json, "one JSON object on standard output");
  verb->footer("Example:\n  diffattn convert --from microsoft --to diffllama IN OUT");
  return [arguments] { return run_convert(*arguments); };
}

}  // namespace diffattn::app
