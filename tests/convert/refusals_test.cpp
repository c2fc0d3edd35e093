// SPDX-License-Identifier: Apache-2.0
//
// Tests that invalid input and failures give a clear message and leave no incomplete files.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/convert/folders.h"

namespace diffattn::convert::testing {
namespace {

using io::testing::error_of;
using io::testing::holds;

const std::string kQ = "model.layers.0.self_attn.q_proj.weight";

/// Converts a Microsoft model after a change to it and returns the error message.
template <typename Change>
std::string refused(Change&& change, Options options = to(Format::kDiffLlama)) {
  json config = small_config("diffattn", "microsoft_v1");
  Weights weights = weights_of(config);
  change(config, weights);
  const TempFolder folder;
  put_model(folder, "in", config, weights);
  const std::string message = error_of([&] { convert(folder / "in", folder / "out", options); });
  EXPECT_EQ(folder.entries(), 1u) << "an incomplete folder remains";
  return message;
}

#define EXPECT_SAYS(message, fragment) EXPECT_TRUE(holds(message, fragment)) << (message)

TEST(ConvertRefuses, TensorsThatDoNotFit) {
  EXPECT_SAYS(refused([](json&, Weights& w) { w.tensors.erase(kQ); }),
              "expected a tensor named '" + kQ + "', got none");
  EXPECT_SAYS(refused([](json&, Weights& w) { w.set("strange", {2}, position); }), "got 'strange'");
  EXPECT_SAYS(refused([](json&, Weights& w) {
                w.set(kQ, {23, 12}, position);
              }),
              "expected shape [24, 12] by config.json, got [23, 12]");
  EXPECT_SAYS(refused([](json&, Weights& w) {
                for (int i = 0; i < 5; ++i) w.set("x" + std::to_string(i), {1}, position);
              }),
              "'x2' and 2 more");
  EXPECT_SAYS(refused([](json& c, Weights&) { c["num_hidden_layers"] = 3; }), "model.layers.2.");
  EXPECT_SAYS(refused([](json& c, Weights&) { c["num_hidden_layers"] = 1; }), "model.layers.1.");
}

TEST(ConvertRefuses, ConfigsThatDoNotFit) {
  const auto with = [](const char* key, const json& value) {
    return refused([&](json& c, Weights&) { c[key] = value; });
  };
  EXPECT_SAYS(with("model_type", "gpt2"), "config.json: key 'model_type': expected");
  EXPECT_SAYS(with("attention", "dint"), "key 'attention'");
  EXPECT_SAYS(with("hidden_size", "wide"), "key 'hidden_size'");
  EXPECT_SAYS(with("hidden_size", -3), "key 'hidden_size'");
  EXPECT_SAYS(with("num_key_value_heads", 3), "even head counts");
  EXPECT_SAYS(with("num_attention_heads", 8), "got [24, 12]");
  EXPECT_SAYS(with("num_key_value_heads", 4), "multiple of 4 kv heads");
  EXPECT_SAYS(with("head_dim", 3), "even head_dim");
  EXPECT_SAYS(with("quantization_config", {{"bits", 4}}), "no quantisation");
  EXPECT_SAYS(with("partial_rotary_factor", 0.5), "partial_rotary_factor");
  EXPECT_SAYS(with("hidden_act", "gelu"), "\"silu\"");
  EXPECT_SAYS(with("mlp_bias", true), "mlp_bias");
  EXPECT_SAYS(refused([](json& c, Weights&) { c.erase("model_type"); }), "--from");
}

TEST(ConvertRefuses, FormatsWithoutAConversion) {
  const auto nothing = [](json&, Weights&) {};
  EXPECT_SAYS(refused(nothing, to(Format::kLlama)), "from microsoft to diffllama, microsoft, got");
  EXPECT_SAYS(refused(nothing, to(Format::kMicrosoft)), "expected two formats");
  Options other = to(Format::kDiffLlama);
  other.from = Format::kLlama;
  EXPECT_SAYS(refused(nothing, other), "expected a llama model, got microsoft");
  Options legacy = to(Format::kMicrosoft);
  legacy.pairing = GqaPairing::kLegacyNaive;
  EXPECT_SAYS(refused(
                  [](json& c, Weights& w) {
                    c = small_config("diffllama");
                    w = weights_of(c);
                  },
                  legacy),
              "expected a microsoft model for legacy_naive");
}

class ConvertFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const json config = small_config("diffllama");
    put_model(folder_, "in", config, weights_of(config));
  }
  std::string in() const { return folder_ / "in"; }
  std::string out() const { return folder_ / "out"; }

  TempFolder folder_;
};

TEST_F(ConvertFolder, AnExistingTargetIsReplacedOnlyByForceAndOnlyAModelFolder) {
  Options options = to(Format::kMicrosoft);
  convert(in(), out(), options);
  folder_.put("out/old.txt", "old");
  EXPECT_SAYS(error_of([&] { convert(in(), out(), options); }), "--force replaces it");
  EXPECT_TRUE(std::filesystem::exists(out() + "/old.txt"));
  options.force = true;
  convert(in(), out() + "/", options);
  EXPECT_FALSE(std::filesystem::exists(out() + "/old.txt"));
  EXPECT_EQ(config_of(out()).at("attention"), "microsoft_v1");
  std::filesystem::create_directory(folder_ / "home");
  folder_.put("home/letter.txt", "dear");
  EXPECT_SAYS(error_of([&] { convert(in(), folder_ / "home", options); }), "a model folder");
  EXPECT_SAYS(error_of([&] { convert(in(), in() + "/.", options); }),
              "a folder other than the source");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "home/letter.txt"));
  EXPECT_EQ(folder_.entries(), 3u);
}

TEST_F(ConvertFolder, OtherFilesAreCarriedOverButNotWeightsAndCode) {
  const std::string tokenizer(3'000'000, 'x');  // more than one block
  folder_.put("in/tokenizer.json", tokenizer);
  folder_.put("in/README.md", "read me");
  folder_.put("in/pytorch_model.bin", "old");
  folder_.put("in/modeling_x.py", "import os");
  folder_.put("in/.hidden", "no");
  folder_.put("cached", "vocabulary");
  std::filesystem::create_symlink(folder_ / "cached", folder_ / "in/link.json");
  std::filesystem::create_symlink("nowhere", folder_ / "in/dangling.json");
  std::filesystem::create_symlink("loop.json", folder_ / "in/loop.json");
  std::filesystem::create_symlink("/dev/zero", folder_ / "in/zero.json");
  std::filesystem::create_directory(folder_ / "in/below");
  Options refusing = to(Format::kMicrosoft);
  refusing.symlinks = io::Symlinks::kRefuse;
  const Report report = convert(in(), out(), refusing);
  EXPECT_EQ(report.files, (std::vector<std::string>{"README.md", "tokenizer.json"}));
  EXPECT_EQ(io::testing::slurp(out() + "/tokenizer.json"), tokenizer);
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(out())) ++entries;
  EXPECT_EQ(entries, 4u);  // two copied files, config.json and model.safetensors
  std::vector<std::string> left;
  for (const Left& item : report.left) left.push_back(item.name + ": " + item.why);
  EXPECT_EQ(left,
            (std::vector<std::string>{
                ".hidden: hidden", "below: not a file", "dangling.json: a symbolic link",
                "link.json: a symbolic link", "loop.json: a symbolic link",
                "modeling_x.py: code for the old layout",
                "pytorch_model.bin: weights in the old layout", "zero.json: a symbolic link"}));

  Options following = to(Format::kMicrosoft);
  following.force = true;
  const Report copied = convert(in(), out(), following);
  EXPECT_EQ(copied.files, (std::vector<std::string>{"README.md", "link.json", "tokenizer.json"}));
  EXPECT_EQ(io::testing::slurp(out() + "/link.json"), "vocabulary");
  EXPECT_FALSE(std::filesystem::is_symlink(out() + "/link.json"));
  ASSERT_FALSE(copied.notes.empty());
  EXPECT_EQ(copied.notes.back(),
            "symbolic links: the result has copies of the files they lead to: 'link.json'");
}

TEST_F(ConvertFolder, ADryRunReportsEverythingAndWritesNothing) {
  Options options = to(Format::kMicrosoft);
  options.dry_run = true;
  const Report planned = convert(in(), out(), options);
  EXPECT_EQ(folder_.entries(), 1u);
  const Report done = convert(in(), out(), to(Format::kMicrosoft));
  ASSERT_EQ(planned.tensors.size(), done.tensors.size());
  EXPECT_EQ(planned.bytes, done.bytes);
  size_t used = 0;
  for (const TensorReport& item : done.tensors) used += item.source.empty() ? 0 : 1;
  EXPECT_EQ(used, io::ShardedReader::open(in()).names().size());
}

TEST_F(ConvertFolder, AStopOnTheWayLeavesNothing) {
  Options options = to(Format::kMicrosoft);
  int calls = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    if (++calls == 5) throw io::Error("out", "stopped");
  };
  EXPECT_SAYS(error_of([&] { convert(in(), out(), options); }), "stopped");
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(ConvertFolder, ADiskThatTakesNoMoreLeavesNothing) {
  struct rlimit former = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &former), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit tight { 8192, former.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string message = error_of([&] { convert(in(), out(), to(Format::kMicrosoft)); });
  ::setrlimit(RLIMIT_FSIZE, &former);
  std::signal(SIGXFSZ, handler);
  EXPECT_SAYS(message, "write failed");
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(ConvertFolder, NamesMayHaveOtherParts) {
  json config = small_config("diffllama");
  Weights renamed;
  for (const auto& [name, tensor] : weights_of(config).tensors) {
    std::string other = name.starts_with("model.") ? "net." + name.substr(6) : name;
    if (const auto at = other.find("self_attn"); at != std::string::npos) other.erase(at, 5);
    renamed.tensors[other] = tensor;
  }
  put_model(folder_, "other", config, renamed);
  Options options = to(Format::kMicrosoft);
  EXPECT_SAYS(error_of([&] { convert(folder_ / "other", out(), options); }), "model.embed_tokens");
  options.renames = {{"net.", "model."}, {".attn.", ".self_attn."}, {"x.", "y."}};
  EXPECT_SAYS(error_of([&] { convert(folder_ / "other", out(), options); }),
              "expected a tensor with 'x.' in its name for --rename, got none");
  options.renames.pop_back();
  convert(folder_ / "other", out(), options);
  convert(in(), folder_ / "same", to(Format::kMicrosoft));
  EXPECT_EQ(io::testing::slurp(out() + "/model.safetensors"),
            io::testing::slurp(folder_ / "same/model.safetensors"));
}

TEST_F(ConvertFolder, TiedHeadsAndRotaryTablesMayLieInTheFile) {
  json config = small_config("diffllama");
  config["tie_word_embeddings"] = true;
  Weights weights = weights_of(config);
  weights.set("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, position);
  put_model(folder_, "tied", config, weights);
  const Report report = convert(folder_ / "tied", out(), to(Format::kMicrosoft));
  ASSERT_EQ(report.left.size(), 2u);
  EXPECT_EQ(report.left[0].name, "lm_head.weight");
  EXPECT_EQ(io::ShardedReader::open(out()).find("lm_head.weight"), nullptr);
}

}  // namespace
}  // namespace diffattn::convert::testing
