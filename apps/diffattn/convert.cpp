// SPDX-License-Identifier: Apache-2.0
//
// diffattn convert: converts a model folder from one layout to another.

#include "diffattn/convert/convert.h"
#include "apps/diffattn/terminal/stop_signal.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"

namespace diffattn::app {
namespace {

struct ConvertArguments {
  std::string source, target, from, to, pairing = "paired", report;
  std::vector<std::string> renames;
  uint64_t max_shard_mib = uint64_t{50} << 10;
  std::optional<uint64_t> seed;
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

/// Replaces the layer: "model.layers.3.mlp.up_proj.weight" -> "model.layers.*.mlp.up_proj.weight".
std::string without_layer(const std::string& name) {
  const std::string mark = ".layers.";
  const size_t begin = name.find(mark);
  if (begin == std::string::npos) return name;
  const size_t number = begin + mark.size(), end = name.find('.', number);
  return end == std::string::npos ? name : name.substr(0, number) + "*" + name.substr(end);
}

/// A line of the printed report: tensors that differ in their layer only.
struct ConvertRow {
  std::string name, what, type;
  size_t count = 0;
};

/// Adds one to the count of the row with the same texts. Appends the row if there is none.
void count_row(std::vector<ConvertRow>& rows, const ConvertRow& row) {
  const auto same = [&](const ConvertRow& other) {
    return other.name == row.name && other.what == row.what && other.type == row.type;
  };
  auto found = std::find_if(rows.begin(), rows.end(), same);
  if (found == rows.end()) found = rows.insert(rows.end(), row);
  ++found->count;
}

std::vector<ConvertRow> converted_rows(const convert::Report& report) {
  std::vector<ConvertRow> rows;
  for (const convert::TensorReport& item : report.tensors) {
    count_row(rows,
              {without_layer(item.tensor.name), item.what + (item.exact ? "" : ", rounded once"),
               fmt::format("{} {}", io::dtype_name(item.tensor.dtype),
                           io::shape_text(item.tensor.shape))});
  }
  return rows;
}

void print_conversion(const convert::Report& report, const ConvertArguments& arguments) {
  const std::vector<ConvertRow> rows = converted_rows(report);
  size_t width = 6, what_width = 4;
  for (const ConvertRow& row : rows) {
    width = std::max(width, row.name.size());
    what_width = std::max(what_width, row.what.size());
  }
  print_out("{:<{}}  {:>5}  {:<{}}  {}\n", "tensor", width, "count", "what", what_width,
            "type and shape");
  for (const ConvertRow& row : rows) {
    print_out("{:<{}}  {:>5}  {:<{}}  {}\n", row.name, width, row.count, row.what, what_width,
              row.type);
  }
  for (const std::string& file : report.files) {
    print_out("{:<{}}  {:>5}  copied\n", file, width, 1);
  }
  std::vector<ConvertRow> left;
  for (const convert::Left& item : report.left) {
    count_row(left, {without_layer(item.name), item.why, ""});
  }
  for (const ConvertRow& row : left) {
    print_out("{:<{}}  {:>5}  left out: {}\n", row.name, width, row.count, row.what);
  }
  for (const std::string& note : report.notes) print_out("note: {}\n", note);
  print_out("{} to {}: {} tensors, {:.1f} MiB{} {}\n", convert::format_name(report.from),
            convert::format_name(report.to), report.tensors.size(),
            static_cast<double>(report.bytes) / (1 << 20),
            arguments.dry_run ? "; nothing written to" : " in", arguments.target);
}

/// Throws io::Error if --attention-only or --seed do not fit the source. A dry run finds the format
/// of the source, since only config.json names it if --from is missing.
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
  // Only the conversion of a Llama into a DiffLlama draws new weights.
  const bool gets_new = from == convert::Format::kLlama && arguments.to == "diffllama";
  if (arguments.seed && !gets_new) {
    throw io::Error(arguments.source,
                    fmt::format("expected llama to diffllama for --seed, got {} to {}",
                                convert::format_name(from), arguments.to));
  }
}

/// Throws io::Error before the conversion if --report cannot be written. A report inside the new
/// folder cannot be checked before that folder exists.
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
  if (arguments.follow_links) {
    print_note("warning: --follow-links is no longer needed: symbolic links are always followed\n");
  }
  convert::Options options = convert_options_of(arguments);
  check_report(arguments);
  check_source(arguments, options);
  const StopSignal signal;
  PercentBar bar("convert");
  options.progress = [&](uint64_t done, uint64_t total) {
    if (signal.received()) throw io::Error(arguments.target, "stopped; nothing was written");
    bar.show(done, total);
  };
  const convert::Report report = convert::convert(arguments.source, arguments.target, options);
  bar.clear();
  const Json json = convert_json(report, arguments);
  if (!arguments.report.empty()) io::write_text(arguments.report, json_text(json) + "\n");
  if (arguments.json) {
    print_json(json);
  } else {
    print_conversion(report, arguments);
  }
  return 0;
}

}  // namespace

VerbAction add_convert(CLI::App& app) {
  auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* verb =
      app.add_subcommand("convert", "Convert a model folder from one layout to another");
  verb->add_option("source", arguments->source, "model folder to read")->required();
  verb->add_option("target", arguments->target, "model folder to write")->required();
  verb->add_option("--from", arguments->from,
                   "layout of the source (default: the one that config.json names)")
      ->check(CLI::IsMember(convert::format_names()));
  verb->add_option("--to", arguments->to,
                   "layout of the target; motif and phi4_flash copy models of that layout")
      ->required()
      ->check(CLI::IsMember(convert::format_names()));
  verb->add_option("--gqa", arguments->pairing,
                   "pairing of heads that a microsoft model was trained with (default paired)")
      ->check(CLI::IsMember({"paired", "legacy_naive"}));
  verb->add_flag("--attention-only", arguments->attention_only,
                 "convert only the attention layers of a motif or phi4_flash model");
  verb->add_option("--rename", arguments->renames, "OLD=NEW: replace a part of tensor names")
      ->check([](const std::string& text) {
        return text.find('=') == std::string::npos ? "expected OLD=NEW, got " + text : "";
      })
      ->allow_extra_args(false);
  verb->add_option("--max-shard-mib", arguments->max_shard_mib,
                   "largest size of a weight file in MiB (default 51200)")
      ->check(integer_in(1, int64_t{1} << 40));
  verb->add_option("--seed", arguments->seed,
                   "seed of the second maps that a Llama gets (default 0)")
      ->check(any_seed());
  verb->add_flag("--follow-links", arguments->follow_links,
                 "no longer needed: symbolic links are always followed");
  verb->add_flag("--force", arguments->force, "replace an existing model folder");
  verb->add_flag("--dry-run", arguments->dry_run, "check and report without writing");
  verb->add_option("--report", arguments->report, "also write the JSON report to this file");
  verb->add_flag("--json", arguments->json, "print the report as one JSON object");
  verb->footer("Example:\n  diffattn convert --from microsoft --to diffllama IN OUT");
  return [arguments] { return run_convert(*arguments); };
}

}  // namespace diffattn::app
