// SPDX-License-Identifier: Apache-2.0
//
// Files that version 0.1.0 wrote: a run of 20 steps with its checkpoint of step 10, its model, and
// the logits that it computed with this model. See tests/fixtures/v0_1_0/README.md.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <sstream>

#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "diffattn/io/safetensors.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/train/run.h"
#include "diffattn/train/task_data.h"
#include "io/settings.h"
#include "models/tensor_file.h"
#include "tests/io/test_files.h"

namespace diffattn::train::compatibility_test {
namespace {

using io::testing::TempFolder;
using torch::Tensor;

constexpr double kBound = 2e-5;  // other instruction sets round differently

const std::string kFolder = std::string(DIFFATTN_TEST_DATA) + "/v0_1_0";

double distance(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

/// Returns the training losses in a metrics.jsonl.
std::vector<double> losses_of(const std::string& path) {
  std::istringstream lines(io::read_text(path, 1 << 20));
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) {
    const auto json = io::parse_json(line, path);
    losses.push_back(io::JsonValue(json, path).at("loss").to_double());
  }
  return losses;
}

TEST(Version010, ItsModelGivesTheRecordedLogits) {
  const auto recorded = io::SafetensorsReader::open(kFolder + "/logits.safetensors");
  nn::CausalLM model = models::load_causal_lm(kFolder + "/run/model");
  const torch::NoGradGuard no_grad;
  nn::DecoderInput input;
  input.ids = models::read_tensor(recorded, "ids");
  const Tensor logits = model->logits(model->forward(input).last);
  EXPECT_LE(distance(logits, models::read_tensor(recorded, "logits")), kBound);
}

TEST(Version010, ItsRunResumesAndEndsWithTheSameModel) {
  const TempFolder folder;
  std::filesystem::copy(kFolder + "/run", folder.path(), std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(folder / "model");
  RunConfig config;
  for (const io::Setting& setting : io::read_settings(folder / "config.toml")) config.set(setting);
  const auto data = open_task_data(config);
  EXPECT_EQ(config.to_toml(), read_run_file(folder.path()));
  const auto batches = data->train_batches();
  {
    train::Run run(folder.path(), config, new_task_model(config, *data));
    ASSERT_TRUE(run.resume(*batches));
    EXPECT_EQ(run.trainer().state.step, 10);
    EXPECT_EQ(run.trainer().state.tokens, 160);
    EXPECT_EQ(run.go(*batches, nullptr), Outcome::kDone);
  }
  const auto expected = losses_of(kFolder + "/run/metrics.jsonl");
  const auto actual = losses_of(folder / "metrics.jsonl");
  ASSERT_EQ(actual.size(), 20u);
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4) << i;
  const auto theirs = models::named_weights(*models::load_causal_lm(kFolder + "/run/model"));
  const auto ours = models::named_weights(*models::load_causal_lm(folder / "model"));
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE(distance(ours[i].second, theirs[i].second), 1e-4) << ours[i].first;
  }
}

}  // namespace
}  // namespace diffattn::train::compatibility_test
