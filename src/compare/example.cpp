// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compare/measure.h"
#include "compare/shown_example.h"
#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/train/summarizer.h"

namespace diffattn::compare {
namespace {

using train::TaskModel;

/// Returns what the model answers or writes, in words.
std::vector<std::string> answer_of(const Trained& trained, const ShownExample& shown,
                                   const train::Predictions& made) {
  const auto writer = std::dynamic_pointer_cast<nn::EncoderDecoderImpl>(trained.trainer->model());
  if (writer) {
    const torch::Tensor ids = shown.batch.ids.flatten().contiguous();
    const std::vector<int64_t> source(ids.data_ptr<int64_t>(),
                                      ids.data_ptr<int64_t>() + ids.numel());
    const auto length = static_cast<int64_t>(shown.right.size());
    const auto texts = train::write_texts(*writer, {source}, {.max_new_tokens = length + 8});
    return words_of(texts.front(), trained);
  }
  const int64_t predicted = made.predicted[0].item<int64_t>();
  if (trained.config.task == train::Task::kClassify) {
    return {trained.data->labels[static_cast<size_t>(predicted)]};
  }
  return words_of({predicted}, trained);
}

/// Marks the words that differ from the right ones at their position.
analysis::ReadExample::Line compared(const std::string& label,
                                     const std::vector<std::string>& words,
                                     const std::vector<std::string>& right) {
  analysis::ReadExample::Line line{label, {}};
  for (size_t i = 0; i < words.size(); ++i) {
    const bool same = i < right.size() && words[i] == right[i];
    line.words.push_back({words[i], same ? "" : "wrong"});
  }
  if (words.empty()) line.words.push_back({"(nothing)", "wrong"});
  return line;
}

/// Keeps only the cross-attention of an encoder-decoder, the last of its three parts.
void keep_cross_attention(TaskModel& model, TaskModel::Traces& traces) {
  const auto writer = std::dynamic_pointer_cast<nn::EncoderDecoderImpl>(model.module());
  if (!writer) return;
  const auto layers = static_cast<ptrdiff_t>(writer->decoder->layers.size());
  traces.erase(traces.begin(), traces.end() - layers);
}

void add_attention(const ModelResult& result, const ShownExample& shown, bool cross,
                   std::vector<analysis::LayerCalls> calls, Comparison& comparison) {
  for (size_t path = 0; path < calls.size(); ++path) {
    analysis::ModelAttention attention;
    attention.name = result.name + (cross ? ", cross-attention" : "");
    if (calls.size() > 1) attention.name += ", path " + std::to_string(path);
    attention.sequence = analysis::path_sequence(shown.sequence, static_cast<int64_t>(path));
    attention.calls = std::move(calls[path]);
    analysis::describe(attention);
    comparison.attention.push_back(std::move(attention));
  }
}

}  // namespace

void draw_example(std::vector<Trained>& trained, Comparison& comparison) {
  const torch::NoGradGuard no_grad;
  const ShownExample shown = shown_example(trained.front());
  analysis::ReadExample read = shown.read;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (trained[i].from_file) continue;
    TaskModel& model = trained[i].trainer->task_model();
    model.module()->eval();
    TaskModel::Traces traces;
    const train::Predictions made = model.predict(shown.batch.to(model.device()), &traces);
    const std::string& name = comparison.models[i].name;
    if (!read.lines.empty()) {
      read.lines.push_back(compared(name, answer_of(trained[i], shown, made), shown.right));
    }
    keep_cross_attention(model, traces);
    add_attention(comparison.models[i], shown, shown.batch.target_ids.defined(),
                  analysis::calls_of(traces), comparison);
  }
  if (!read.lines.empty()) comparison.example = std::move(read);
}

}  // namespace diffattn::compare
