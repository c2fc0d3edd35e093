// SPDX-License-Identifier: Apache-2.0
//
// Every call by which `convert` and `compare` write a model folder fails once in each way. A folder
// under its final name must be whole, or be what it was before.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <map>

#include "compare/compare.h"
#include "diffattn/convert/convert.h"
#include "diffattn/io/error.h"
#include "tests/convert/folders.h"
#include "tests/faults/faulty_child.h"

namespace diffattn::model_folder_test {
namespace {

namespace fs = std::filesystem;
using io::testing::TempFolder;
using testing::End;
using testing::Fault;
using testing::kEnded;
using testing::Tell;

using Contents = std::map<std::string, std::string>;

/// Returns the bytes of every file below `folder` by its path; nothing if there is no such folder.
Contents contents_of(const std::string& folder) {
  Contents contents;
  if (!fs::exists(folder)) return contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    contents[fs::relative(entry.path(), folder)] = io::testing::slurp(entry.path());
  }
  return contents;
}

/// Returns the paths below `folder` with a name that begins with a dot.
std::vector<std::string> hidden_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = fs::relative(entry.path(), folder);
    if (path.starts_with('.') || path.find("/.") != path.npos) found.push_back(path);
  }
  return found;
}

/// Runs `work` in a child process, with one fault in `folder`.
template <class Work>
End run_with(const Fault& fault, const std::string& folder, Work&& work) {
  return run_child({folder, ""}, fault, [&](const Tell&) {
    try {
      work();
      return kEnded;
    } catch (const io::Error&) {
      return testing::kFailed;
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
      return testing::kWrong;
    }
  });
}

TEST(FaultPoints, AConvertedFolderIsWholeOrAsItWas) {
  testing::use_quick_folders();
  const TempFolder sources;
  const auto config = convert::testing::small_config("diffllama");
  const std::string source =
      convert::testing::put_model(sources, "source", config, convert::testing::weights_of(config));
  sources.put("source/tokenizer.json", std::string(3000, ' '));
  const std::string old =
      convert::testing::put_model(sources, "old", config, convert::testing::rest_of(config));
  convert::Options options = convert::testing::to(convert::Format::kMicrosoft);
  options.max_shard_bytes = 4096;
  options.force = true;
  for (const bool replaces : {false, true}) {
    const Contents before = replaces ? contents_of(old) : Contents{};
    const auto convert_in = [&](const TempFolder& folder, const Fault& fault) {
      if (replaces) fs::copy(old, folder / "out");
      return run_with(fault, folder.path(),
                      [&] { convert::convert(source, folder / "out", options); });
    };
    const TempFolder undisturbed;
    const End reference = convert_in(undisturbed, {});
    ASSERT_EQ(reference.code, kEnded);
    const Contents expected = contents_of(undisturbed / "out");
    ASSERT_GE(expected.size(), 5u);  // two shards, index, config.json and the tokenizer
    const TempFolder without_flags;
    EXPECT_EQ(convert_in(without_flags, {-1, kFaultNoFlags}).code, kEnded);
    EXPECT_TRUE(contents_of(without_flags.path()) == contents_of(undisturbed.path()));
    const auto chosen = testing::faults_of(reference.calls, /*sample=*/80);
    for (const Fault& one : chosen) {
      const FaultCall call = reference.calls[static_cast<size_t>(one.at)];
      SCOPED_TRACE("call " + std::to_string(one.at) + ": " + testing::name_of(call, one.kind) +
                   (replaces ? ", replacing" : ""));
      const TempFolder folder;
      const End end = convert_in(folder, one);
      EXPECT_TRUE(testing::is_expected(end.code, call, one.kind)) << end.code;
      const Contents got = contents_of(folder / "out");
      EXPECT_TRUE(got == expected || (end.code != kEnded && got == before));
      if (one.kind != kFaultKill) {
        EXPECT_EQ(hidden_in(folder.path()), std::vector<std::string>{});
      }
      convert::convert(source, folder / "out", options);
      EXPECT_TRUE(contents_of(folder / "out") == expected);
    }
    std::cout << reference.calls.size() << " calls, " << chosen.size() << " faults\n";
  }
}

struct Saved : std::exception {};

/// Trains one small model for a step and saves it in folder/diffllama-seed11. Ends there: what
/// follows measures the model and writes nothing.
void compare_in(const std::string& folder) {
  torch::set_num_threads(1);
  train::RunConfig config;
  config.set_all({{"task", "recall"},
                  {"model.hidden_size", "8"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"model.intermediate_size", "8"},
                  {"recall.pairs", "2"},
                  {"recall.key_parts", "2"},
                  {"recall.values", "2"},
                  {"train.steps", "1"},
                  {"train.batch_size", "1"},
                  {"train.eval_batches", "1"},
                  {"train.peak_tflops", "1"}});
  compare::CompareOptions options;
  options.models = {compare::contender("diffllama", config)};
  options.jobs = 1;
  options.models_folder = folder;
  compare::CompareEvents events;
  events.on_message = [](const std::string&) { throw Saved(); };
  try {
    compare::compare(options, events);
  } catch (const Saved&) {
  }
}

TEST(FaultPoints, AComparedModelIsWholeOrAbsent) {
  testing::use_quick_folders();
  const TempFolder undisturbed;
  const auto compare_with = [](const Fault& fault, const std::string& folder) {
    return run_with(fault, folder, [&] { compare_in(folder); });
  };
  const End reference = compare_with({}, undisturbed.path());
  ASSERT_EQ(reference.code, kEnded);
  const Contents expected = contents_of(undisturbed.path());
  const std::string run = "/diffllama-seed11";
  ASSERT_TRUE(expected.contains("diffllama-seed11/model/model.safetensors"));
  ASSERT_TRUE(expected.contains("diffllama-seed11/config.toml"));
  const Contents model = contents_of(undisturbed.path() + run + "/model");
  const auto chosen = testing::faults_of(reference.calls, /*sample=*/25);
  for (const Fault& one : chosen) {
    const FaultCall call = reference.calls[static_cast<size_t>(one.at)];
    SCOPED_TRACE("call " + std::to_string(one.at) + ": " + testing::name_of(call, one.kind));
    const TempFolder folder;
    const End end = compare_with(one, folder.path());
    EXPECT_TRUE(testing::is_expected(end.code, call, one.kind)) << end.code;
    const Contents got = contents_of(folder.path() + run + "/model");
    EXPECT_TRUE(got == model || (end.code != kEnded && got.empty()));
    if (fs::exists(folder.path() + run + "/config.toml")) {
      EXPECT_TRUE(contents_of(folder.path()) == expected);
    }
    EXPECT_EQ(compare_with({}, folder.path()).code, kEnded);
    EXPECT_TRUE(contents_of(folder.path()) == expected);  // nothing hidden is left either
  }
  std::cout << reference.calls.size() << " calls, " << chosen.size() << " faults\n";
}

}  // namespace
}  // namespace diffattn::model_folder_test
