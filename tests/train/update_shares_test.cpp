// SPDX-License-Identifier: Apache-2.0
//
// The loss of an update is the same for any division of its rows into micro-batches.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "diffattn/train/task_data.h"
#include "diffattn/train/trainer.h"

namespace diffattn::train::update_shares_test {
namespace {

using torch::Tensor;

RunConfig config_of(const std::string& task, int64_t micro_batches) {
  RunConfig config;
  config.set_all({{"task", task},
                  {"model.hidden_size", "16"},
                  {"model.num_hidden_layers", "2"},
                  {"model.num_attention_heads", "2"},
                  {"model.initializer_range", "0.5"},
                  {"classify.dropout", "0"},
                  {"train.accumulate", std::to_string(micro_batches)},
                  {"train.label_smoothing", "0.1"},
                  {"train.peak_tflops", "1"}});
  return config;
}

/// Endless micro-batches, made from a list of their examples.
class Listed final : public BatchSource {
 public:
  Listed(const RunConfig& config, std::vector<data::ExampleSet> sets)
      : classifies_(config.task == Task::kClassify), sets_(std::move(sets)) {}
  Batch next() override {
    const data::ExampleSet& set = sets_[at_++ % sets_.size()];
    return classifies_ ? classification_batch(set) : summarization_batch(set, 1);
  }
  std::string position() const override { return "{}"; }
  void seek(const std::string&) override {}

 private:
  bool classifies_;
  std::vector<data::ExampleSet> sets_;
  size_t at_ = 0;
};

/// A text of `source` tokens and a summary of `target` tokens, or the class `label`.
data::ExampleSet example(int source, int target, int64_t label) {
  data::ExampleSet set;
  data::Example& one = set.examples.emplace_back();
  for (int i = 0; i < source; ++i) one.source.push_back(static_cast<io::TokenId>(5 + i));
  for (int i = 0; i < target; ++i) one.target.push_back(static_cast<io::TokenId>(9 + i));
  one.label = label;
  return set;
}

data::ExampleSet joined(std::vector<data::ExampleSet> sets) {
  data::ExampleSet all;
  for (data::ExampleSet& set : sets) {
    std::move(set.examples.begin(), set.examples.end(), std::back_inserter(all.examples));
  }
  return all;
}

StepReport first_update(RunConfig config, const std::vector<data::ExampleSet>& sets) {
  const auto data = open_task_data(config);
  auto model = new_task_model(config, *data);
  if (config.task == Task::kClassify) {
    Tensor weights = torch::full({static_cast<int64_t>(data->labels.size())}, 0.5F);
    weights[0] = 3.0F;
    model = classifier_model(Classifier(std::dynamic_pointer_cast<ClassifierImpl>(model->module())),
                             weights);
  }
  Listed source(config, sets);
  return Trainer(std::move(model), config).step(source);
}

TEST(UpdateShares, MicroBatchesEqualOneLargeBatch) {
  const std::vector<data::ExampleSet> first{example(3, 7, 0), example(9, 1, 1), example(4, 2, 1)};
  const std::vector<data::ExampleSet> second{example(12, 3, 1)};
  std::vector<data::ExampleSet> all = first;
  all.push_back(second.front());
  for (const char* task : {"classify", "summarize"}) {
    for (const char* key :
         {"train.clip_norm", "train.z_loss", "train.sparsity_weight", "train.focus_weight"}) {
      RunConfig one = config_of(task, 1), two = config_of(task, 2);
      for (RunConfig* config : {&one, &two}) config->set(key, "1");
      const StepReport whole = first_update(one, {joined(all)});
      const StepReport parts = first_update(two, {joined(first), joined(second)});
      EXPECT_EQ(parts.tokens, whole.tokens) << task << key;
      EXPECT_NEAR(parts.loss, whole.loss, 1e-5 * whole.loss) << task << key;
      EXPECT_NEAR(parts.gradient_norm, whole.gradient_norm, 1e-4 * whole.gradient_norm)
          << task << key;
    }
  }
}

// A micro-batch without labels has no share, and an update without labels has no loss.
TEST(UpdateShares, MicroBatchesMayHaveNoLabels) {
  const data::ExampleSet text = example(3, 4, 0);
  class Unlabelled final : public BatchSource {
   public:
    Unlabelled(Batch batch, int64_t every) : batch_(std::move(batch)), every_(every) {}
    Batch next() override {
      Batch batch = batch_;
      if (at_++ % every_ == 0) batch.labels = torch::full_like(batch.labels, -100);
      return batch;
    }
    std::string position() const override { return "{}"; }
    void seek(const std::string&) override {}

   private:
    Batch batch_;
    int64_t every_, at_ = 0;
  };
  RunConfig config = config_of("summarize", 2);
  const auto data = open_task_data(config);
  RunConfig alone = config_of("summarize", 1);
  open_task_data(alone);
  Listed labelled(alone, {text});
  const double want = Trainer(new_task_model(alone, *data), alone).step(labelled).loss;
  Unlabelled half(summarization_batch(text, 1), 2), none(summarization_batch(text, 1), 1);
  const StepReport got = Trainer(new_task_model(config, *data), config).step(half);
  EXPECT_NEAR(got.loss, want, 1e-6 * want);
  EXPECT_FALSE(got.skipped);
  EXPECT_EQ(Trainer(new_task_model(config, *data), config).step(none).loss, 0.0);
}

}  // namespace
}  // namespace diffattn::train::update_shares_test
