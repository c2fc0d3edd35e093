// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/train/evaluator.h"
#include "diffattn/train/run.h"
#include "diffattn/train/summarizer.h"
#include "diffattn/train/task_data.h"
#include "io/test_files.h"

namespace diffattn::train {
namespace {

using io::testing::TempFolder;
using torch::Tensor;

RunConfig tiny_task(const std::string& task) {
  RunConfig config;
  config.set_all({{"task", task},
                  {"model.hidden_size", "16"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"needle.length", "12"},
                  {"needle.keys", "4"},
                  {"needle.values", "4"},
                  {"needle.noise", "4"},
                  {"recall.pairs", "2"},
                  {"recall.key_parts", "4"},
                  {"recall.values", "4"},
                  {"classify.length", "10"},
                  {"classify.noise", "8"},
                  {"classify.words_per_class", "2"},
                  {"summarize.sentences", "3"},
                  {"summarize.words", "2"},
                  {"summarize.vocabulary", "8"},
                  {"train.steps", "6"},
                  {"train.batch_size", "4"},
                  {"train.learning_rate", "1e-2"},
                  {"train.eval_every", "3"},
                  {"train.eval_batches", "1"},
                  {"train.checkpoint_every", "2"}});
  return config;
}

void run_until(const std::string& folder, RunConfig config, int64_t stop_at) {
  const auto data = open_task(config);
  Run run(folder, config, new_task_model(config, *data));
  const auto train = data->train_batches();
  const auto valid = data->valid_batches();
  run.resume(*train);
  RunEvents events;
  events.stop = [&] { return run.trainer().progress.step == stop_at; };
  run.go(*train, valid.get(), events);
}

TEST(Tasks, StoppedAndResumedRunsEndInTheSameBits) {
  for (const char* task : {"needle", "recall", "classify", "summarize"}) {
    const TempFolder whole, parts;
    run_until(whole.path(), tiny_task(task), -1);
    run_until(parts.path(), tiny_task(task), 3);
    run_until(parts.path(), tiny_task(task), -1);
    for (const char* file : {"/checkpoints/step-6/model.safetensors",
                             "/checkpoints/step-6/optimizer.safetensors", "/model/config.json"}) {
      EXPECT_EQ(io::read_text(whole.path() + file, 1 << 24),
                io::read_text(parts.path() + file, 1 << 24))
          << task << file;
    }
  }
}

TEST(Tasks, ShortHaystacksComeFirst) {
  RunConfig config = tiny_task("needle");
  config.set("needle.length", "40");
  config.set("needle.questions", "1");
  config.set("curriculum.steps", "2");
  config.set("curriculum.length", "17");
  const auto data = open_task(config);
  const auto source = data->train_batches();
  EXPECT_EQ(source->next().ids.sizes(), (std::vector<int64_t>{8, 20}));
  const std::string here = source->position();
  const Batch second = source->next();
  EXPECT_EQ(second.ids.size(1), 20);
  EXPECT_EQ(source->next().ids.sizes(), (std::vector<int64_t>{4, 43}));
  source->seek(here);
  EXPECT_TRUE(torch::equal(source->next().ids, second.ids));
  EXPECT_EQ(data->valid_batches()->next().ids.size(1), 43);
}

TEST(Tasks, OnlyAnswersPassThroughTheHead) {
  RunConfig config = tiny_task("needle");
  const auto data = open_task(config);
  const auto model = new_task_model(config, *data);
  Batch batch = data->train_batches()->next();
  EXPECT_EQ(batch.answer_rows->numel(), 4 * config.needle.questions);
  const nn::TokenLoss few = model->loss(batch, {}, nullptr);
  batch.answer_rows.reset();
  const nn::TokenLoss all = model->loss(batch, {}, nullptr);
  EXPECT_NEAR(few.mean.item<double>(), all.mean.item<double>(), 1e-6);
  EXPECT_EQ(few.count.item<int64_t>(), all.count.item<int64_t>());
}

TEST(Tasks, ClassWeightsMakeRareClassesHeavier) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 8; ++i)
    lines += R"({"text": "aa", "label": "x"})"
             "\n";
  lines += R"({"text": "bb", "label": "y"})"
           "\n";
  lines += R"({"text": "bb", "label": "y"})"
           "\n";
  io::write_text(folder.path() + "/data.jsonl", lines);
  RunConfig config = tiny_task("classify");
  config.set("data.train", folder.path() + "/data.jsonl");
  config.set("data.valid", folder.path() + "/data.jsonl");
  config.set("classify.class_weights", "balanced");
  const auto data = open_task(config);
  EXPECT_EQ(data->labels, (std::vector<std::string>{"x", "y"}));
  EXPECT_FLOAT_EQ(data->class_weights[0].item<float>(), 10.0F / 16);
  EXPECT_FLOAT_EQ(data->class_weights[1].item<float>(), 10.0F / 4);
  EXPECT_TRUE(data->tokenizer.has_value());
}

TEST(Tasks, LabelsOfTheValidationDataMustBeKnown) {
  const TempFolder folder;
  io::write_text(folder.path() + "/train.jsonl", R"({"text": "a", "label": 1})"
                                                 "\n"
                                                 R"({"text": "b", "label": 2})"
                                                 "\n");
  io::write_text(folder.path() + "/valid.jsonl", R"({"text": "a", "label": 3})"
                                                 "\n");
  RunConfig config = tiny_task("classify");
  config.set("data.train", folder.path() + "/train.jsonl");
  config.set("data.valid", folder.path() + "/valid.jsonl");
  EXPECT_THROW(open_task(config), io::Error);
}

Classifier classifier_of(RunConfig config) {
  const auto data = open_task(config);
  return Classifier(
      std::dynamic_pointer_cast<ClassifierImpl>(new_task_model(config, *data)->module()));
}

TEST(Classifier, PaddingChangesNothing) {
  for (const char* backbone : {"decoder", "encoder"}) {
    for (const char* pooling : {"cls", "last", "mean"}) {
      RunConfig config = tiny_task("classify");
      config.set("classify.backbone", backbone);
      config.set("classify.pooling", pooling);
      Classifier model = classifier_of(config);
      model->eval();
      nn::ModelInput alone, padded;
      alone.ids = torch::tensor({{5, 6, 7}}, torch::kLong);
      padded.ids = torch::tensor({{5, 6, 7, 0, 0}, {1, 2, 3, 4, 5}}, torch::kLong);
      padded.mask.key_lengths(torch::tensor({3, 5}, torch::kLong));
      const Tensor expected = model->forward(alone).logits[0];
      const Tensor actual = model->forward(padded).logits[0];
      EXPECT_LT((expected - actual).abs().max().item<double>(), 1e-5) << backbone << pooling;
    }
  }
}

TEST(Classifier, ComesBackFromItsFolder) {
  const TempFolder folder;
  RunConfig config = tiny_task("classify");
  config.set("classify.backbone", "encoder");
  Classifier model = classifier_of(config);
  model->eval();
  classifier_model(model)->save(folder.path());
  Classifier read = load_classifier(folder.path());
  EXPECT_EQ(read->config.labels, model->config.labels);
  nn::ModelInput input;
  input.ids = torch::tensor({{5, 6, 7}}, torch::kLong);
  EXPECT_TRUE(torch::equal(read->forward(input).logits, model->forward(input).logits));
  nn::ModelConfig plain = model->config;
  plain.labels.clear();
  EXPECT_ANY_THROW(Classifier{plain});
}

TEST(Evaluator, BucketsAddUpToTheWhole) {
  for (const char* task : {"needle", "classify", "summarize"}) {
    RunConfig config = tiny_task(task);
    const auto data = open_task(config);
    const auto model = new_task_model(config, *data);
    const auto valid = data->valid_batches();
    Evaluator evaluator(*model, "float32", 1);
    Evaluation expected;
    for (int i = 0; i < 3; ++i) {
      const Batch batch = valid->next();
      evaluator.add(batch);
      expected += evaluate(*model, batch, "float32");
    }
    int64_t tokens = 0, right = 0;
    double loss = 0;
    for (const LengthBucket& bucket : evaluator.buckets()) {
      EXPECT_LE(bucket.to, 64);
      tokens += bucket.sums.tokens;
      right += bucket.sums.right;
      loss += bucket.sums.loss_sum;
    }
    EXPECT_EQ(tokens, expected.tokens) << task;
    EXPECT_EQ(right, expected.right) << task;
    EXPECT_NEAR(loss, expected.loss_sum, 1e-4) << task;
    EXPECT_NEAR(evaluator.total().loss(), expected.loss(), 1e-5) << task;
    EXPECT_EQ(evaluator.confusion().total(), std::string(task) == "classify" ? tokens : 0);
    EXPECT_FALSE(evaluator.attention().empty());
  }
}

/// A summariser of a few tokens, so that all texts can be tried.
struct TinyWriter {
  TinyWriter() {
    torch::manual_seed(5);
    nn::ModelConfig c;
    c.kind = nn::ModelKind::kEncoderDecoder;
    c.vocab_size = 5;
    c.hidden_size = 16;
    c.intermediate_size = 16;
    c.num_hidden_layers = c.num_encoder_layers = 1;
    c.num_attention_heads = c.num_key_value_heads = 2;
    c.head_dim = 8;
    c.initializer_range = 0.7;  // far from uniform
    c.decoder_start_token_id = 0;
    c.eos_token_id = 4;
    model = nn::EncoderDecoder(c);
    model->eval();
  }

  /// Log-probability of a text and its end, without a cache.
  double score(const std::vector<int64_t>& source, std::vector<int64_t> text, bool end) {
    const torch::NoGradGuard no_grad;
    nn::ModelInput from, to;
    from.ids = torch::tensor(source).unsqueeze(0);
    if (end) text.push_back(4);
    std::vector<int64_t> read{0};
    read.insert(read.end(), text.begin(), text.end() - 1);
    to.ids = torch::tensor(read).unsqueeze(0);
    const Tensor log_p =
        model->logits(model->decode(to, model->encode(from)).last[0]).log_softmax(-1);
    return log_p.gather(1, torch::tensor(text).unsqueeze(1)).sum().item<double>();
  }

  nn::EncoderDecoder model{nullptr};
};

/// Every text of exactly three tokens, or shorter and ended, by probability / length.
std::vector<int64_t> best_text(TinyWriter& writer, const std::vector<int64_t>& source) {
  std::vector<int64_t> best;
  double most = -1e30;
  const auto consider = [&](const std::vector<int64_t>& text, bool end) {
    const double length = static_cast<double>(text.size() + 1);
    const double value = writer.score(source, text, end) / length;
    if (value > most) {
      most = value;
      best = text;
    }
  };
  consider({}, true);
  for (int64_t a = 0; a < 4; ++a) {
    consider({a}, true);
    for (int64_t b = 0; b < 4; ++b) {
      consider({a, b}, true);
      for (int64_t c = 0; c < 4; ++c) consider({a, b, c}, false);
    }
  }
  return best;
}

TEST(WriteTexts, ManyBeamsFindTheBestOfAllTexts) {
  TinyWriter writer;
  // With 64 beams nothing is ever dropped, and no source finishes early.
  for (const std::vector<int64_t>& source :
       {std::vector<int64_t>{1, 2, 3}, {3, 3}, {2, 1, 1, 0, 2}}) {
    const auto found = write_texts(*writer.model, {source}, {.max_new_tokens = 3, .beams = 64});
    EXPECT_EQ(found[0], best_text(writer, source));
  }
}

TEST(WriteTexts, GreedyTakesTheLikeliestTokenWithoutACacheToo) {
  TinyWriter writer;
  const std::vector<int64_t> source{1, 2, 3};
  std::vector<int64_t> expected;
  for (int step = 0; step < 6; ++step) {
    double most = -1e30;
    int64_t token = -1;
    for (int64_t t = 0; t < 5; ++t) {
      auto longer = expected;
      longer.push_back(t);
      const double value = writer.score(source, longer, false);
      if (value > most) {
        most = value;
        token = t;
      }
    }
    if (token == 4) break;
    expected.push_back(token);
  }
  EXPECT_EQ(write_texts(*writer.model, {source}, {.max_new_tokens = 6})[0], expected);
}

TEST(WriteTexts, SourcesBesideOthersGiveTheSame) {
  TinyWriter writer;
  const std::vector<std::vector<int64_t>> sources{{1, 2, 3}, {3}, {2, 1, 1, 0, 2, 3, 3}, {0, 0}};
  for (const int64_t beams : {1, 3}) {
    const WritingOptions options{.max_new_tokens = 8, .beams = beams};
    const auto together = write_texts(*writer.model, sources, options);
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(write_texts(*writer.model, {sources[i]}, options)[0], together[i]) << beams << i;
    }
  }
}

TEST(WriteTexts, BlockedRunsOfTokensDoNotComeTwice) {
  TinyWriter writer;
  for (const int64_t beams : {1, 3}) {
    const auto text = write_texts(*writer.model, {{1, 2, 3}},
                                  {.max_new_tokens = 14, .beams = beams, .no_repeat_ngram = 2})[0];
    std::set<std::pair<int64_t, int64_t>> seen;
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      EXPECT_TRUE(seen.insert({text[i], text[i + 1]}).second) << i;
    }
  }
}

TEST(WriteTexts, RefusesWhatCannotBe) {
  TinyWriter writer;
  EXPECT_ANY_THROW(write_texts(*writer.model, {{}}, {}));
  EXPECT_ANY_THROW(write_texts(*writer.model, {{5}}, {}));
  EXPECT_ANY_THROW(write_texts(*writer.model, {{1}}, {.beams = 0}));
  EXPECT_TRUE(write_texts(*writer.model, {}, {}).empty());
}

}  // namespace
}  // namespace diffattn::train
