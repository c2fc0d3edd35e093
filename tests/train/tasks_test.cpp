// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <set>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/train/run.h"
#include "diffattn/train/summarizer.h"
#include "diffattn/train/task_data.h"
#include "nn/models/attention_penalty.h"
#include "tests/io/test_files.h"
#include "train/flops.h"
#include "train/new_model.h"
#include "train/tasks/evaluator.h"

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
  const auto data = open_task_data(config);
  Run run(folder, config, new_task_model(config, *data));
  const auto train = data->train_batches();
  const auto valid = data->valid_batches();
  run.resume(*train);
  RunEvents events;
  events.stop = [&] { return run.trainer().state.step == stop_at; };
  run.go(*train, valid.get(), events);
}

TEST(Tasks, StoppedAndResumedRunsEndInTheSameBits) {
  for (const char* task : {"needle", "recall", "classify", "summarize"}) {
    const TempFolder whole, parts;
    run_until(whole.path(), tiny_task(task), -1);
    run_until(parts.path(), tiny_task(task), 3);
    run_until(parts.path(), tiny_task(task), -1);
    for (const char* file :
         {"/checkpoints/step-6/model.safetensors",
          "/checkpoints/step-6/rank-00000/optimizer.safetensors", "/model/config.json"}) {
      EXPECT_EQ(io::read_text(whole.path() + file, 1 << 24),
                io::read_text(parts.path() + file, 1 << 24))
          << task << file;
    }
  }
}

TEST(Tasks, OnlyAnswersPassThroughTheHead) {
  RunConfig config = tiny_task("needle");
  const auto data = open_task_data(config);
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
  const auto data = open_task_data(config);
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
  EXPECT_THROW(open_task_data(config), io::Error);
}

Classifier classifier_of(RunConfig config) {
  const auto data = open_task_data(config);
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
    const auto data = open_task_data(config);
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

double value_of(const Values& values, const std::string& name) {
  for (const auto& [known, value] : values) {
    if (known == name) return value;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

/// Returns texts of different lengths. The longest source and target have equal lengths, so all
/// maps of a batch are square.
data::ExampleSet texts_of_lengths() {
  data::ExampleSet texts;
  for (const auto& [source, target] : {std::pair{3, 10}, {10, 4}, {6, 6}, {1, 2}}) {
    data::Example example;
    for (int i = 0; i < source; ++i) example.source.push_back(static_cast<io::TokenId>(5 + i));
    for (int i = 0; i < target; ++i) example.target.push_back(static_cast<io::TokenId>(14 - i));
    texts.examples.push_back(example);
  }
  return texts;
}

void expect_same_alone(TaskModel& model, Batch (*to_batch)(const data::ExampleSet&),
                       const std::string& what) {
  const data::ExampleSet texts = texts_of_lengths();
  Evaluator together(model, "float32", 4), alone(model, "float32", 4);
  together.add(to_batch(texts));
  for (const data::Example& example : texts.examples) {
    data::ExampleSet one;
    one.examples.push_back(example);
    alone.add(to_batch(one));
  }
  for (const auto& [name, value] : together.attention()) {
    if (std::isnan(value)) continue;
    EXPECT_NEAR(value, value_of(alone.attention(), name), 1e-5) << what << name;
  }
  for (const auto& [name, value] : together.layer_attention()) {
    EXPECT_NEAR(value, value_of(alone.layer_attention(), name), 1e-5) << what << name;
  }
  EXPECT_GT(value_of(together.attention(), "focus"), 0) << what;
}

TEST(Evaluator, AttentionDoesNotDependOnHowTextsAreBatched) {
  for (const std::string backbone : {"decoder", "encoder"}) {
    for (const std::string attention :
         {"diffllama", "microsoft_v2", "transformer", "introspective"}) {
      RunConfig config = tiny_task("classify");
      config.set("classify.backbone", backbone);
      config.set("model.attention", attention);
      config.set("model.initializer_range", "1");
      const auto model = classifier_model(classifier_of(config));
      expect_same_alone(*model, classification_batch, backbone + " " + attention + " ");
    }
  }
  RunConfig config = tiny_task("summarize");
  config.set("model.attention", "microsoft_v2");
  config.set("model.initializer_range", "1");
  const auto data = open_task_data(config);
  const auto model = new_task_model(config, *data);
  expect_same_alone(
      *model, [](const data::ExampleSet& set) { return summarization_batch(set, 1); },
      "summarize ");
}

/// A source that always returns the same batch.
class OneBatch final : public BatchSource {
 public:
  explicit OneBatch(Batch batch) : batch_(std::move(batch)) {}
  Batch next() override { return batch_; }
  std::string position() const override { return "{}"; }
  void seek(const std::string&) override {}

 private:
  Batch batch_;
};

Batch batch_of(const RunConfig& config, const data::ExampleSet& texts) {
  return config.task == Task::kClassify ? classification_batch(texts)
                                        : summarization_batch(texts, 1);
}

/// Returns how much a penalty weight of 1 adds to the loss of the first update.
double added_penalty(RunConfig config, const std::string& key, const data::ExampleSet& texts) {
  const auto data = open_task_data(config);
  OneBatch source(batch_of(config, texts));
  const auto loss = [&](const std::string& weight) {
    config.set(key, weight);
    return Trainer(new_task_model(config, *data), config).step(source).loss;
  };
  return loss("1") - loss("0");
}

// Sources and targets have equal lengths, so all maps are square and their rows have equal weights.
TEST(Trainer, PaddingHasNoShareInTheAttentionPenalty) {
  data::ExampleSet texts;
  for (const int length : {3, 10, 6, 1}) {
    data::Example example;
    for (int i = 0; i < length; ++i) example.source.push_back(static_cast<io::TokenId>(5 + i));
    example.target.assign(example.source.rbegin(), example.source.rend());
    texts.examples.push_back(example);
  }
  for (const auto& [task, backbone] :
       {std::pair{"classify", "decoder"}, {"classify", "encoder"}, {"summarize", "encoder"}}) {
    RunConfig config = tiny_task(task);
    config.set_all({{"classify.backbone", backbone},
                    {"classify.dropout", "0"},
                    {"model.initializer_range", "1"},
                    {"train.peak_tflops", "1"}});
    for (const std::string key : {"train.sparsity_weight", "train.focus_weight"}) {
      double sum = 0, rows = 0;
      for (const data::Example& example : texts.examples) {
        data::ExampleSet one;
        one.examples.push_back(example);
        const auto length = static_cast<double>(example.source.size());
        sum += length * added_penalty(config, key, one);
        rows += length;
      }
      EXPECT_NEAR(added_penalty(config, key, texts), sum / rows, 2e-5) << task << backbone << key;
    }
    // The result differs if all 10 rows of each text count.
    const auto data = open_task_data(config);
    const auto model = new_task_model(config, *data);
    const Batch batch = batch_of(config, texts);
    TaskModel::Traces traces;
    model->loss(batch, {}, &traces);
    const auto right =
        nn::attention_penalty(traces, traced_row_lengths(*model, batch, traces.size()));
    const auto wrong = nn::attention_penalty(traces, {traces.size(), torch::full({4}, 10)});
    EXPECT_GT((right.focus - wrong.focus).abs().item<double>(), 1e-3) << task << backbone;
  }
}

TEST(Evaluator, NamesMeanWhatTheyMeanInAnAnalysis) {
  for (const std::string attention : {"diffllama", "transformer"}) {
    RunConfig config = tiny_task("classify");
    config.set("model.attention", attention);
    config.set("model.initializer_range", "1");
    const auto model = classifier_model(classifier_of(config));
    Evaluator evaluator(*model, "float32", 1);
    evaluator.add(classification_batch(texts_of_lengths()));
    // The model has one layer, so both means are equal.
    for (const char* name : {"focus", "sparsity", "negative_mass", "entropy"}) {
      EXPECT_NEAR(value_of(evaluator.attention(), name),
                  value_of(evaluator.layer_attention(), std::string("layer.0.") + name), 1e-9)
          << attention << name;
    }
    EXPECT_EQ(std::isnan(value_of(evaluator.attention(), "noise_cancelled")),
              attention == "transformer");
  }
}

TEST(Tasks, ClassifiersHaveAZLoss) {
  RunConfig config = tiny_task("classify");
  const auto data = open_task_data(config);
  const auto model = new_task_model(config, *data);
  model->module()->eval();
  const Batch batch = data->train_batches()->next();
  const auto loss = [&](double z_loss) {
    return model->loss(batch, nn::CrossEntropyOptions().z_loss(z_loss), nullptr)
        .mean.item<double>();
  };
  const auto classifier = std::dynamic_pointer_cast<ClassifierImpl>(model->module());
  const Tensor lse = classifier->forward(batch.model_input()).logits.logsumexp(1);
  EXPECT_NEAR(loss(0.5) - loss(0), 0.5 * lse.square().mean().item<double>(), 1e-6);
}

TEST(Tasks, RefusesUnreadFilesAndTooSmallVocabularies) {
  const TempFolder folder;
  const std::string file = folder.path() + "/data.jsonl";
  io::write_text(file, R"({"text": "aa", "label": "x"})"
                       "\n"
                       R"({"text": "bb", "label": "y"})"
                       "\n");
  const auto message = [](RunConfig config) -> std::string {
    try {
      open_task_data(config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing";
  };
  for (const char* task : {"needle", "recall", "classify", "summarize"}) {
    RunConfig config = tiny_task(task);
    config.set("data.valid", file);
    EXPECT_TRUE(message(config).starts_with("data.valid")) << task << message(config);
  }
  for (const char* task : {"needle", "recall"}) {
    RunConfig config = tiny_task(task);
    config.set("data.train", file);
    EXPECT_TRUE(message(config).starts_with("data.train")) << task << message(config);
  }
  RunConfig config = tiny_task("classify");
  config.set("data.train", file);
  config.set("data.valid", file);
  config.set("model.vocab_size", "256");
  EXPECT_TRUE(message(config).starts_with("model.vocab_size")) << message(config);
  config.set("model.vocab_size", "257");
  EXPECT_EQ(message(config), "nothing");
}

TEST(Tasks, LambdaMayBeginBelowZero) {
  RunConfig config = tiny_task("needle");
  open_task_data(config);
  EXPECT_FALSE(model_config_of(config).lambda_init.has_value());
  config.set("model.lambda_init", "-0.5");
  EXPECT_EQ(model_config_of(config).lambda_init, -0.5);
}

TEST(Tasks, EmbeddingsOfAClassifierAreNoProduct) {
  RunConfig config = tiny_task("classify");
  const Classifier untied = classifier_of(config);
  config.set("model.tie_word_embeddings", "true");
  const Classifier tied = classifier_of(config);
  Batch batch;
  batch.ids = torch::zeros({2, 8}, torch::kLong);
  EXPECT_EQ(FlopCounter(*tied, tied->config).training(batch),
            FlopCounter(*untied, untied->config).training(batch));
}

/// A summariser with a tiny vocabulary, so that a test can try all texts.
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
    c.initializer_range = 0.7;  // predictions far from uniform
    c.decoder_start_token_id = 0;
    c.eos_token_id = 4;
    model = nn::EncoderDecoder(c);
    model->eval();
  }

  /// Returns the log-probability of a text, and of its end token if `end`, without a KV cache.
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

/// Returns the text with the best log-probability / length among all texts of up to three tokens.
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
  // With 64 beams the search drops no text and no source finishes early.
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

TEST(WriteTexts, RefusesInvalidArguments) {
  TinyWriter writer;
  EXPECT_ANY_THROW(write_texts(*writer.model, {{}}, {}));
  EXPECT_ANY_THROW(write_texts(*writer.model, {{5}}, {}));
  EXPECT_ANY_THROW(write_texts(*writer.model, {{1}}, {.beams = 0}));
  EXPECT_TRUE(write_texts(*writer.model, {}, {}).empty());
}

}  // namespace
}  // namespace diffattn::train
