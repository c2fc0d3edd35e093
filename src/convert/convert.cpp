// SPDX-License-Identifier: Apache-2.0
#include "diffattn/convert/convert.h"

#include <filesystem>

#include "convert/plan.h"
#include "convert/staging.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"

namespace diffattn::convert {
namespace {

using Planner = void (*)(Plan&);

struct Conversion {
  Format from, to;
  Planner plan;
};
constexpr Conversion kConversions[] = {
    {Format::kMicrosoft, Format::kDiffLlama, plan_microsoft_diffllama},
    {Format::kDiffLlama, Format::kMicrosoft, plan_microsoft_diffllama},
    {Format::kMicrosoft, Format::kMicrosoft, plan_microsoft_diffllama},
    {Format::kLlama, Format::kMicrosoftV2, plan_llama_to_v2},
    {Format::kMicrosoftV2, Format::kLlama, plan_v2_to_llama},
    {Format::kLlama, Format::kDiffLlama, plan_llama_to_diffllama},
    {Format::kDiffLlama, Format::kLlama, plan_diffllama_to_llama},
    {Format::kMotif, Format::kDiffattn, plan_motif},
    {Format::kPhi4Flash, Format::kDiffattn, plan_phi4_flash},
    {Format::kMotif, Format::kMotif, plan_whole_motif},
    {Format::kPhi4Flash, Format::kPhi4Flash, plan_whole_phi4_flash},
};

Planner planner_for(const Model& model, const Options& options) {
  std::string known;
  for (const Conversion& item : kConversions) {
    if (item.from != model.format) continue;
    if (item.to == options.to) return item.plan;
    known += (known.empty() ? "" : ", ") + std::string(format_name(item.to));
  }
  throw io::Error(model.path, "expected a conversion from " +
                                  std::string(format_name(model.format)) + " to " + known +
                                  ", got one to " + std::string(format_name(options.to)));
}

void check_options(const Model& model, const Options& options) {
  const bool legacy = options.pairing == GqaPairing::kLegacyNaive;
  if (legacy && model.format != Format::kMicrosoft) {
    throw io::Error(model.path, "expected a microsoft model for legacy_naive pairing, got " +
                                    std::string(format_name(model.format)));
  }
  if (!legacy && model.format == options.to && !copies_whole_models(options.to)) {
    throw io::Error(
        model.path,
        "expected two formats, got " + std::string(format_name(options.to)) +
            " twice; only motif, phi4_flash and legacy_naive pairing keep their format");
  }
  if (model.mlp_bias && options.to == Format::kDiffLlama) {
    throw io::Error(model.path,
                    "expected mlp_bias false, since DiffLlama has no such biases, got true");
  }
}

Report report_of(const Plan& plan) {
  Report report;
  report.from = plan.model().format;
  report.to = plan.options().to;
  for (const Output& output : plan.outputs()) {
    report.tensors.push_back(output.report);
    report.bytes += io::tensor_bytes(output.report.tensor, plan.source().name());
  }
  report.left = plan.left();
  report.notes = plan.notes();
  return report;
}

void write_weights(const Plan& plan, const std::string& folder, Report& report) {
  std::vector<io::TensorSpec> specs;
  for (const TensorReport& item : report.tensors) specs.push_back(item.tensor);
  io::ShardedWriter writer(folder, specs, plan.options().max_shard_bytes, {{"format", "pt"}});
  uint64_t done = 0;
  for (const Output& output : plan.outputs()) {
    run_recipe(plan.source(), output, writer);
    done += io::tensor_bytes(output.report.tensor, folder);
    if (plan.options().progress) plan.options().progress(done, report.bytes);
  }
  writer.commit();
  report.weights = writer.files();
}

}  // namespace

Report convert(const std::string& source, const std::string& target, const Options& options) {
  std::error_code error;
  if (std::filesystem::equivalent(source, target, error)) {
    throw io::Error(target, "expected a folder other than the source, got the same folder");
  }
  check_target(target, options.force);
  const Model model = read_model(source, options.from);
  const Planner planner = planner_for(model, options);
  check_options(model, options);
  const auto reader = io::ShardedReader::open(source, options.symlinks);
  Plan plan(model, reader, options);
  planner(plan);
  plan.finish();
  Report report = report_of(plan);
  if (options.dry_run) {
    carry_files(source, "", options, report);
    return report;
  }
  StagingFolder staging(target, options.force);
  staging.need_bytes(report.bytes);
  write_weights(plan, staging.path(), report);
  io::write_text(staging.path() + "/config.json", target_config(model, options.to, plan.changes()));
  carry_files(source, staging.path(), options, report);
  staging.publish();
  return report;
}

}  // namespace diffattn::convert
