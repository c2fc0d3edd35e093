// SPDX-License-Identifier: Apache-2.0
//
// Beam search over an encoder-decoder. The beams of a source are adjacent rows of the batch. A
// source leaves the batch when it has as many finished texts as beams.

#include "diffattn/train/summarizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace diffattn::train {
namespace {

using torch::Tensor;
using Ids = std::vector<int64_t>;

constexpr float kBeamNever = -std::numeric_limits<float>::infinity();

struct Hypothesis {
  Ids ids;
  double score = 0;
};

struct Beam {
  Ids ids;
  double log_probability = 0;
};

void check_sources(const nn::EncoderDecoderImpl& model, const std::vector<Ids>& sources,
                   const WritingOptions& options) {
  const auto at_least = [](const char* option, int64_t least, int64_t value) {
    if (value >= least) return;
    throw_argument_error(option, "at least " + std::to_string(least), std::to_string(value));
  };
  if (!model.config.decoder_start_token_id) {
    throw_argument_error("model", "decoder_start_token_id in its config", "none");
  }
  at_least("beams", 1, options.beams);
  at_least("max_new_tokens", 1, options.max_new_tokens);
  at_least("no_repeat_ngram", 0, options.no_repeat_ngram);
  for (size_t row = 0; row < sources.size(); ++row) {
    const std::string name = c10::str("sources[", row, "]");
    if (sources[row].empty()) throw_argument_error(name, "at least one token", "none");
    for (const int64_t id : sources[row]) {
      if (id >= 0 && id < model.config.vocab_size) continue;
      throw_argument_error(
          name, c10::str("token ids in [0, ", model.config.vocab_size - 1, "], the vocabulary"),
          std::to_string(id));
    }
  }
}

nn::ModelInput padded_sources(const std::vector<Ids>& sources, torch::Device device) {
  size_t longest = 0;
  for (const Ids& source : sources) longest = std::max(longest, source.size());
  Ids flat, lengths;
  for (const Ids& source : sources) {
    flat.insert(flat.end(), source.begin(), source.end());
    flat.resize(flat.size() + longest - source.size(), 0);
    lengths.push_back(std::ssize(source));
  }
  nn::ModelInput input;
  input.ids =
      torch::tensor(flat).view({std::ssize(sources), static_cast<int64_t>(longest)}).to(device);
  input.mask.key_lengths(torch::tensor(lengths).to(device));
  return input;
}

/// Returns the tokens that would complete an n-gram which `ids` already contains.
Ids banned_tokens(const Ids& ids, int64_t n) {
  Ids banned;
  if (n <= 0 || std::ssize(ids) + 1 < n) return banned;
  const auto tail = ids.end() - (n - 1);
  for (auto at = ids.begin(); at + (n - 1) < ids.end(); ++at) {
    if (std::equal(tail, ids.end(), at)) banned.push_back(*(at + (n - 1)));
  }
  return banned;
}

class BeamSearch {
 public:
  BeamSearch(nn::EncoderDecoderImpl& model, const WritingOptions& options, size_t sources)
      : model_(model),
        options_(options),
        finished_(sources),
        device_(model.head_weight().device()) {
    for (size_t i = 0; i < sources; ++i) active_.push_back(i);
  }

  std::vector<Ids> run(const nn::ModelInput& input) {
    nn::WritingState state = model_.begin(input);
    if (options_.beams > 1) {
      state.select_rows(torch::arange(std::ssize(active_), input.ids.options())
                            .repeat_interleave(options_.beams));
    }
    beams_.resize(active_.size() * static_cast<size_t>(options_.beams));
    // All beams of a source start equal, so only the first may be continued.
    for (size_t i = 0; i < beams_.size(); ++i) {
      if (static_cast<int64_t>(i) % options_.beams != 0) beams_[i].log_probability = kBeamNever;
    }
    Tensor ids = torch::full({std::ssize(beams_), 1}, *model_.config.decoder_start_token_id,
                             input.ids.options());
    for (int64_t step = 0; step < options_.max_new_tokens && !active_.empty(); ++step) {
      const Tensor logits = model_.logits(model_.write(ids, state).select(1, -1));
      const Ids rows = advance(logits.to(torch::kFloat32).log_softmax(-1));
      if (active_.empty()) break;
      state.select_rows(torch::tensor(rows).to(device_), same_sources_);
      Ids next;
      for (const Beam& beam : beams_) next.push_back(beam.ids.back());
      ids = torch::tensor(next).to(device_).unsqueeze(1);
    }
    return best();
  }

 private:
  /// Advances all sources by one token, from log_probabilities [rows, V]. Returns for each new row
  /// the old row that it continues.
  Ids advance(Tensor log_probabilities) {
    block_ngrams(log_probabilities);
    const int64_t vocabulary = log_probabilities.size(1), k = options_.beams;
    std::vector<double> so_far;
    for (const Beam& beam : beams_) so_far.push_back(beam.log_probability);
    const Tensor total =
        log_probabilities.to(torch::kCPU, torch::kFloat64) + torch::tensor(so_far).unsqueeze(1);
    const auto [scores, places] =
        total.view({-1, k * vocabulary}).topk(std::min(2 * k, k * vocabulary), 1);
    std::vector<Beam> beams;
    std::vector<size_t> active;
    Ids rows;
    for (size_t s = 0; s < active_.size(); ++s) {
      const auto source = static_cast<int64_t>(s);
      std::vector<Beam> kept;
      Ids from;
      for (int64_t c = 0; c < scores.size(1) && std::ssize(kept) < k; ++c) {
        const int64_t place = places[source][c].item<int64_t>();
        const double score = scores[source][c].item<double>();
        if (!std::isfinite(score)) break;
        const int64_t row = source * k + place / vocabulary;
        Beam beam{beams_[static_cast<size_t>(row)].ids, score};
        if (place % vocabulary == model_.config.eos_token_id.value_or(-1)) {
          if (c < k) finish(active_[s], beam);
          continue;
        }
        beam.ids.push_back(place % vocabulary);
        kept.push_back(std::move(beam));
        from.push_back(row);
      }
      if (std::ssize(finished_[active_[s]]) >= k || kept.empty()) continue;
      while (std::ssize(kept) < k) {  // fewer continuations than beams: fill with dead copies
        kept.push_back({kept.front().ids, kBeamNever});
        from.push_back(from.front());
      }
      active.push_back(active_[s]);
      std::move(kept.begin(), kept.end(), std::back_inserter(beams));
      rows.insert(rows.end(), from.begin(), from.end());
    }
    same_sources_ = active.size() == active_.size();
    active_ = std::move(active);
    beams_ = std::move(beams);
    return rows;
  }

  void block_ngrams(Tensor& log_probabilities) const {
    if (options_.no_repeat_ngram == 0) return;
    for (size_t row = 0; row < beams_.size(); ++row) {
      const Ids banned = banned_tokens(beams_[row].ids, options_.no_repeat_ngram);
      if (banned.empty()) continue;
      log_probabilities[static_cast<int64_t>(row)].index_fill_(0, torch::tensor(banned).to(device_),
                                                               kBeamNever);
    }
  }

  void finish(size_t source, const Beam& beam) {
    const auto length = static_cast<double>(beam.ids.size() + 1);
    finished_[source].push_back(
        {beam.ids, beam.log_probability / std::pow(length, options_.length_penalty)});
  }

  std::vector<Ids> best() {
    for (size_t s = 0; s < active_.size(); ++s) {  // sources that reached max_new_tokens
      for (int64_t b = 0; b < options_.beams; ++b) {
        finish(active_[s],
               beams_[s * static_cast<size_t>(options_.beams) + static_cast<size_t>(b)]);
      }
    }
    std::vector<Ids> texts;
    for (auto& hypotheses : finished_) {
      const auto found = std::ranges::max_element(hypotheses, {}, &Hypothesis::score);
      texts.push_back(found == hypotheses.end() ? Ids{} : found->ids);
    }
    return texts;
  }

  nn::EncoderDecoderImpl& model_;
  const WritingOptions& options_;
  std::vector<std::vector<Hypothesis>> finished_;  // per source
  std::vector<size_t> active_;                     // sources in the batch
  std::vector<Beam> beams_;                        // options_.beams per active source
  bool same_sources_ = true;
  torch::Device device_;
};

}  // namespace

std::vector<Ids> write_texts(nn::EncoderDecoderImpl& model, const std::vector<Ids>& sources,
                             const WritingOptions& options) {
  check_sources(model, sources, options);
  if (sources.empty()) return {};
  const torch::NoGradGuard no_grad;
  return BeamSearch(model, options, sources.size())
      .run(padded_sources(sources, model.head_weight().device()));
}

data::Rouge summary_quality(TaskModel& model, const TaskData& data, int64_t count) {
  const auto writer = std::dynamic_pointer_cast<nn::EncoderDecoderImpl>(model.module());
  if (!writer) throw_argument_error("model", "an encoder-decoder", "another model");
  writer->eval();
  const auto batches = data.valid_batches();
  data::Rouge sum;
  int64_t done = 0;
  while (batches && done < count) {
    const Batch batch = batches->next();
    const Tensor lengths = batch.mask.key_lengths().value();
    std::vector<Ids> sources, references;
    for (int64_t row = 0; row < batch.ids.size(0) && done + std::ssize(sources) < count; ++row) {
      const Tensor source = batch.ids[row].slice(0, 0, lengths[row].item<int64_t>()).contiguous();
      sources.emplace_back(source.data_ptr<int64_t>(), source.data_ptr<int64_t>() + source.numel());
      Ids reference;
      for (int64_t i = 0; i < batch.labels.size(1); ++i) {
        const int64_t id = batch.labels[row][i].item<int64_t>();
        if (id >= 0 && id != data.end_token.value_or(-1)) reference.push_back(id);
      }
      references.push_back(std::move(reference));
    }
    const auto texts = write_texts(*writer, sources, {.max_new_tokens = batch.labels.size(1) + 8});
    for (size_t i = 0; i < texts.size(); ++i) sum += data::rouge(texts[i], references[i]);
    done += std::ssize(texts);
  }
  const double n = static_cast<double>(std::max<int64_t>(1, done));
  return {sum.rouge1 / n, sum.rouge2 / n, sum.rouge_l / n};
}

}  // namespace diffattn::train
