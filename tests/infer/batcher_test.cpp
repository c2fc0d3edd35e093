// SPDX-License-Identifier: Apache-2.0
#include "diffattn/infer/batcher.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "diffattn/infer/generator.h"
#include "diffattn/kernels/error.h"
#include "infer/prompt_score.h"
#include "tests/infer/small_model.h"

namespace diffattn::infer {
namespace {

using torch::Tensor;
using Results = std::map<uint64_t, std::vector<NewToken>>;

/// Runs until nothing is left, or for at most `steps` steps.
void run(Batcher& batcher, Results& results, int64_t steps = 100000) {
  for (; steps > 0 && !batcher.idle(); --steps) {
    for (const NewToken& token : batcher.step()) results[token.request].push_back(token);
  }
}

std::vector<int64_t> ids_of(const std::vector<NewToken>& tokens) {
  std::vector<int64_t> ids;
  for (const NewToken& token : tokens) ids.push_back(token.token);
  return ids;
}

/// Every model that has fused steps on this machine, and one that has none.
class BatcherTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t kNew = 24;

  std::vector<nn::CausalLM> models() {
    std::vector<nn::CausalLM> all;
    if (GetParam() == "modules") {
      all.push_back(make_model(small_config("dint"), torch::kCPU, torch::kFloat32));
      return all;
    }
    for (const Place& place : places()) {
      all.push_back(make_model(small_config("microsoft_v2"), place.device, place.type));
    }
    return all;
  }
  static nn::SamplingOptions options(size_t row) {
    return nn::SamplingOptions()
        .max_new_tokens(kNew - static_cast<int64_t>(row % 5))
        .temperature(row % 2 == 0 ? 0.0 : 0.8)
        .seed(row);
  }
};

TEST_P(BatcherTest, RowsThatJoinAndLeaveHaveTheTokensOfRowsAlone) {
  for (auto& model : models()) {
    const Rows prompts = make_prompts(9);
    std::vector<std::vector<int64_t>> alone;
    for (size_t row = 0; row < prompts.size(); ++row) {
      Batcher one(model);
      Results results;
      one.submit({prompts[row], options(row)});
      run(one, results);
      alone.push_back(ids_of(results[0]));
    }
    Batcher batcher(model, GeneratorOptions().max_rows(4));
    Results results;
    for (size_t row = 0; row < prompts.size(); ++row) {
      EXPECT_EQ(batcher.submit({prompts[row], options(row)}), row);
      run(batcher, results, static_cast<int64_t>(row % 3) * 4);
      EXPECT_LE(batcher.load().running, 4);
    }
    run(batcher, results);
    for (size_t row = 0; row < prompts.size(); ++row) {
      EXPECT_EQ(ids_of(results[row]), alone[row]) << "row " << row;
      EXPECT_EQ(results[row].back().finish, Finish::kLength);
      for (size_t i = 0; i + 1 < results[row].size(); ++i) EXPECT_FALSE(results[row][i].finish);
    }
    EXPECT_EQ(batcher.load().used_pages, 0);
  }
}

TEST_P(BatcherTest, CancelledRowsGiveTheirPlaceBack) {
  for (auto& model : models()) {
    Batcher batcher(model, GeneratorOptions().max_rows(2));
    const Rows prompts = make_prompts(4);
    for (size_t row = 0; row < 4; ++row) batcher.submit({prompts[row], options(row)});
    Results results;
    run(batcher, results, 5);
    batcher.cancel(0);
    batcher.cancel(3);  // still waits
    batcher.cancel(77);
    const size_t before = results[0].size();
    run(batcher, results);
    EXPECT_EQ(results[0].size(), before);
    EXPECT_FALSE(results.contains(3));
    EXPECT_EQ(results[1].size(), static_cast<size_t>(options(1).max_new_tokens()));
    EXPECT_EQ(results[2].size(), static_cast<size_t>(options(2).max_new_tokens()));
    EXPECT_EQ(batcher.load().used_pages, 0);
  }
}

TEST_P(BatcherTest, RequestsWaitForRoomInTheCache) {
  for (auto& model : models()) {
    Batcher batcher(model, GeneratorOptions().page_size(64).cache_tokens(128));
    const Rows prompts = make_prompts(5);
    for (size_t row = 0; row < 5; ++row) {
      batcher.submit({{prompts[row].front()}, options(row)});  // one page each
    }
    EXPECT_THROW(batcher.submit({prompts[0], nn::SamplingOptions().max_new_tokens(500)}), Error);
    Results results;
    while (!batcher.idle()) {
      run(batcher, results, 1);
      EXPECT_LE(batcher.load().used_pages, 2);
    }
    for (size_t row = 0; row < 5; ++row) {
      EXPECT_EQ(results[row].size(), static_cast<size_t>(options(row).max_new_tokens()));
    }
  }
}

TEST_P(BatcherTest, LogProbabilitiesAreThoseOfTheModel) {
  for (auto& model : models()) {
    Batcher batcher(model);
    const auto prompt = make_prompts(2)[1];
    batcher.submit({prompt, nn::SamplingOptions().max_new_tokens(12).temperature(1.5).top_k(20)});
    Results results;
    run(batcher, results);
    std::vector<int64_t> ids = prompt;
    for (const int64_t id : ids_of(results[0])) ids.push_back(id);
    const torch::NoGradGuard no_gradients;
    nn::DecoderInput input;
    input.ids = torch::tensor(ids, torch::kLong).unsqueeze(0).to(model->head_weight().device());
    const Tensor log_p =
        model->logits(model->forward(input).last)[0].to(torch::kFloat32).log_softmax(-1).cpu();
    const bool exact = model->head_weight().scalar_type() == torch::kFloat32;
    for (size_t i = 0; i < results[0].size(); ++i) {
      const auto at = static_cast<int64_t>(prompt.size() + i) - 1;
      EXPECT_NEAR(results[0][i].log_probability, log_p[at][results[0][i].token].item<float>(),
                  exact ? 1e-3 : 0.15);
    }
  }
}

TEST_P(BatcherTest, PromptsInPartsHaveTheTokensOfWholePrompts) {
  for (auto& model : models()) {
    Rows prompts = make_prompts(6);
    prompts.emplace_back();
    for (int64_t i = 0; i < 200; ++i) prompts.back().push_back(i * 7 % 97);
    prompts.push_back(prompts.back());  // shares the pages of a prompt that is still computed
    Results whole, parts;
    for (const bool in_parts : {false, true}) {
      Batcher batcher(model, GeneratorOptions().page_size(32).prefill_tokens(in_parts ? 24 : 0));
      for (size_t row = 0; row < prompts.size(); ++row) {
        batcher.submit({prompts[row], options(row)});
      }
      run(batcher, in_parts ? parts : whole);
      EXPECT_EQ(batcher.load().used_pages, 0);
    }
    const bool exact = model->head_weight().scalar_type() == torch::kFloat32;
    for (size_t row = 0; row < prompts.size(); ++row) {
      if (exact) {
        EXPECT_EQ(ids_of(parts[row]), ids_of(whole[row])) << "row " << row;
      }
      EXPECT_EQ(parts[row].size(), whole[row].size());
    }
  }
}

TEST_P(BatcherTest, ALongPromptDoesNotHoldUpRowsThatRun) {
  for (auto& model : models()) {
    Batcher batcher(model, GeneratorOptions().prefill_tokens(16));
    const auto options = nn::SamplingOptions().max_new_tokens(40);
    batcher.submit({{1, 2, 3}, options});
    Results results;
    run(batcher, results, 2);
    std::vector<int64_t> long_prompt(400, 5);
    batcher.submit({long_prompt, options});
    batcher.submit({{4, 5}, options});
    run(batcher, results, 10);
    EXPECT_GE(results[0].size(), 10u);
    EXPECT_FALSE(results.contains(1)) << "its prompt takes 25 steps";
    batcher.cancel(1);  // in the middle of its prompt
    run(batcher, results);
    EXPECT_EQ(results[0].size(), 40u);
    EXPECT_EQ(results[2].size(), 40u);
    EXPECT_EQ(batcher.load().used_pages, 0);
  }
}

TEST_P(BatcherTest, AlternativesAreTheLikeliestTokens) {
  for (auto& model : models()) {
    Batcher batcher(model);
    const auto options = nn::SamplingOptions().max_new_tokens(6);
    batcher.submit({{5, 6, 7}, options, 4});
    batcher.submit({{5, 6, 7}, options});
    Results results;
    run(batcher, results);
    EXPECT_EQ(ids_of(results[0]), ids_of(results[1]));
    for (const NewToken& token : results[0]) {
      ASSERT_EQ(token.alternatives.size(), 4u);
      EXPECT_EQ(token.alternatives[0].token, token.token);
      EXPECT_NEAR(token.alternatives[0].log_probability, token.log_probability, 1e-4);
      EXPECT_GT(token.alternatives[0].log_probability, token.alternatives[3].log_probability);
    }
    EXPECT_TRUE(results[1][0].alternatives.empty());
  }
}

TEST_P(BatcherTest, ScoresOfAPromptAreThoseOfItsGeneration) {
  for (auto& model : models()) {
    Batcher batcher(model);
    const std::vector<int64_t> prompt{5, 6, 7};
    batcher.submit({prompt, nn::SamplingOptions().max_new_tokens(20), 2});
    Results results;
    run(batcher, results);
    std::vector<int64_t> ids = prompt;
    for (const int64_t id : ids_of(results[0])) ids.push_back(id);
    PromptScore score(model, ids, 2);
    while (score.advance(7)) {
    }
    ASSERT_EQ(score.scores().size(), ids.size());
    const bool exact = model->head_weight().scalar_type() == torch::kFloat32;
    for (size_t i = 0; i < results[0].size(); ++i) {
      const ScoredToken& scored = score.scores()[prompt.size() + i];
      EXPECT_EQ(scored.token, results[0][i].token);
      EXPECT_NEAR(scored.log_probability, results[0][i].log_probability, exact ? 1e-3 : 0.15);
      ASSERT_EQ(scored.alternatives.size(), 2u);
      if (exact) {
        EXPECT_EQ(scored.alternatives[0].token, scored.token);
      }
    }
    EXPECT_THROW(PromptScore(model, {}, 0), Error);
    EXPECT_THROW(PromptScore(model, {97}, 0), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, BatcherTest, testing::Values("steps", "modules"),
                         [](const auto& info) { return info.param; });

// --- Steps only ----------------------------------------------------------------------------------

TEST(SharedPrefix, RowsThatBeginAlikeShareTheirPages) {
  for (const Place& place : places()) {
    auto model = make_model(small_config("diffllama"), place.device, place.type);
    const auto options = nn::SamplingOptions().max_new_tokens(20);
    std::vector<int64_t> common;
    for (int64_t i = 0; i < 100; ++i) common.push_back(i * 31 % 97);
    Rows prompts{common, common};  // the same prompt: nothing is computed twice
    prompts.push_back(common), prompts.back().push_back(5);  // one more token
    prompts.push_back(common), prompts.back().resize(60);    // shorter
    prompts.push_back(common), prompts.back()[70] = 3;       // differs in the second page
    Rows alone;
    for (const auto& prompt : prompts) {
      Batcher one(model, GeneratorOptions().page_size(32));
      Results results;
      one.submit({prompt, options});
      run(one, results);
      alone.push_back(ids_of(results[0]));
    }
    for (const bool together : {true, false}) {
      Batcher batcher(model, GeneratorOptions().page_size(32));
      Results results;
      for (const auto& prompt : prompts) {
        batcher.submit({prompt, options});
        if (!together) run(batcher, results, 2);
      }
      run(batcher, results, 2);
      // 4 pages each and 3 for the short prompt, less those that are shared.
      if (together) {
        EXPECT_EQ(batcher.load().used_pages, 4 + (4 - 3) + (4 - 3) + (3 - 1) + (4 - 2));
      }
      run(batcher, results);
      for (size_t row = 0; row < prompts.size(); ++row) {
        if (place.type == torch::kFloat32) {
          EXPECT_EQ(ids_of(results[row]), alone[row]) << "row " << row;
        }
        EXPECT_EQ(results[row].size(), alone[row].size());
      }
      EXPECT_EQ(batcher.load().used_pages, 0);
    }
  }
}

TEST(PromptsInParts, AShortOneHasItsFirstTokenWhileALongOneIsComputed) {
  for (const Place& place : places()) {
    auto model = make_model(small_config("diffllama"), place.device, place.type);
    Batcher batcher(model, GeneratorOptions().prefill_tokens(16));
    const auto options = nn::SamplingOptions().max_new_tokens(4);
    batcher.submit({std::vector<int64_t>(400, 5), options});
    Results results;
    run(batcher, results, 3);
    // It has the half of a turn that the long prompt leaves.
    batcher.submit({std::vector<int64_t>(8, 6), options});
    run(batcher, results, 3);
    EXPECT_TRUE(results.contains(1)) << name_of(place);
    EXPECT_FALSE(results.contains(0)) << "its prompt takes 25 steps";
    run(batcher, results);
    EXPECT_EQ(results[0].size(), 4u);
  }
}

TEST(Growth, RowsGetPagesWhenTheyNeedThem) {
  for (const Place& place : places()) {
    auto model = make_model(small_config("diffllama"), place.device, place.type);
    Generator generator(model);
    const Rows prompts = make_prompts(2);
    constexpr size_t kTokens = 700;  // more than twice what a row gets ahead
    const auto endless = nn::SamplingOptions().max_new_tokens(int64_t{1} << 30);
    std::vector<size_t> counts(2);
    const Rows cut = generator.generate(
        prompts, endless, [&](size_t row, int64_t) { return ++counts[row] < kTokens; });
    EXPECT_LE(generator.load().pages, 64);
    EXPECT_EQ(generator.load().used_pages, 0);
    const Rows whole = Generator(model, GeneratorOptions().cache_tokens(4096))
                           .generate(prompts, nn::SamplingOptions().max_new_tokens(kTokens));
    EXPECT_EQ(cut, whole);
  }
}

TEST(Penalties, AreThoseOfTheGeneralPath) {
  auto model = make_model(small_config("diffllama"), torch::kCPU, torch::kFloat32);
  Generator generator(model);
  ASSERT_TRUE(generator.uses_steps());
  const Rows prompts = make_prompts(4);
  const auto plain = nn::SamplingOptions().max_new_tokens(40);
  const Rows without = generator.generate(prompts, plain);
  for (const auto& options :
       {nn::SamplingOptions(plain).presence_penalty(1.5),
        nn::SamplingOptions(plain).frequency_penalty(0.7),
        nn::SamplingOptions(plain).repetition_penalty(1.4),
        nn::SamplingOptions(plain).presence_penalty(-0.5).frequency_penalty(0.9).repetition_penalty(
            1.1)}) {
    const Rows got = generator.generate(prompts, options);
    EXPECT_EQ(got, nn::generate(*model, prompts, options));
    EXPECT_NE(got, without);
  }
}

// --- Memory --------------------------------------------------------------------------------------

/// Returns the bytes that are allocated on a device: by torch on a GPU, by malloc on the host.
int64_t allocated_bytes(torch::Device device) {
  if (device.is_cuda()) {
    torch::cuda::synchronize();
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(0);
    return stats.allocated_bytes[kAll].current;
  }
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

/// Submits requests of many lengths, cancels a seventh while they wait and another while they run,
/// and returns when all others have ended.
void serve(Batcher& batcher, int64_t requests) {
  const Rows prompts = make_prompts(50);
  Results results;
  for (int64_t i = 0; i < requests; ++i) {
    const auto options = nn::SamplingOptions().max_new_tokens(1 + i % 3).temperature(i % 2);
    const uint64_t number = batcher.submit({prompts[static_cast<size_t>(i % 50)], options});
    if (i % 7 == 0) batcher.cancel(number);
    if (i % 16 == 0) run(batcher, results, 2);
    if (i % 7 == 1) {
      run(batcher, results, 1);
      batcher.cancel(number);
    }
  }
  run(batcher, results);
}

TEST(Soak, AThousandRequestsLeaveNothingBehind) {
  for (const Place& place : places()) {
    auto model = make_model(small_config("diffllama"), place.device, place.type);
    const auto options = GeneratorOptions().max_rows(16);
    {
      Batcher first(model, options);  // fills caches of torch and oneDNN, which keep code per shape
      serve(first, 500);
    }
    const int64_t before = allocated_bytes(place.device);
    int64_t grown = 0;
    {
      Batcher batcher(model, options);
      serve(batcher, 500);
      const int64_t half = allocated_bytes(place.device), pages = batcher.load().pages;
      serve(batcher, 500);
      grown = allocated_bytes(place.device) - half;
      EXPECT_EQ(batcher.load().used_pages, 0);
      EXPECT_EQ(batcher.load().pages, pages) << "the cache grew";
    }
    // Other users of the host's heap take a little; a leak of 64 bytes per request is more.
    const int64_t slack = place.device.is_cuda() ? 0 : 64 * 500;
    EXPECT_LE(grown, slack) << name_of(place);
    EXPECT_LE(allocated_bytes(place.device) - before, slack) << name_of(place);
  }
}

}  // namespace
}  // namespace diffattn::infer
