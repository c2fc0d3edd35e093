// SPDX-License-Identifier: Apache-2.0
#include "train/context_parallel.h"

#include <fmt/format.h>

#include <algorithm>

#include "diffattn/error.h"
#include "diffattn/nn/cross_entropy.h"
#include "diffattn/nn/dint_attention.h"
#include "diffattn/nn/multihead_diff_attention.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {
namespace {

using torch::Tensor;
using Move = RowExchange::Move;

/// Applies `change` to q, k and v. A single map has one q and one k.
template <class Change>
void for_queries(nn::HeadTensors& h, const Change& change) {
  h.q1 = change(h.q1);
  h.q2 = h.single_map ? h.q1 : change(h.q2);
}
template <class Change>
void for_keys(nn::HeadTensors& h, const Change& change) {
  h.k1 = change(h.k1);
  h.k2 = h.single_map ? h.k1 : change(h.k2);
  h.v = change(h.v);
}

/// True if lambda has one number per token and head.
bool is_per_token(const nn::HeadTensors& h) { return h.lambda.dim() == h.q1.dim() - 1; }

}  // namespace

ContextParallel::ContextParallel(std::shared_ptr<parallel::Collective> world, int64_t size,
                                 const torch::nn::Module& model)
    : world_(std::move(world)), size_(size) {
  for (const auto& module : model.modules()) {
    if (dynamic_cast<nn::AttentionLayer*>(module.get()) == nullptr) continue;
    const auto* layer = dynamic_cast<nn::MultiheadDiffAttentionImpl*>(module.get());
    // DINT also averages over the rows of a sequence.
    const bool averages = dynamic_cast<nn::DintAttentionImpl*>(module.get()) != nullptr;
    if (layer == nullptr || averages || layer->options.cross_attention()) {
      throw ConfigError(fmt::format(
          "train.context_parallel: expected 1, because {} does not share the tokens of a row, got "
          "{}",
          module->name(), size));
    }
    by_heads_ = by_heads_ && layer->sizes.heads % size == 0 && layer->sizes.kv_heads % size == 0;
  }
}

Batch ContextParallel::part(const Batch& batch) {
  const int64_t tokens = batch.ids.size(-1);
  exchange_ = c10::make_intrusive<RowExchange>(world_, size_, tokens, /*zigzag=*/!by_heads_);
  const auto own = [&](const Tensor& all) {
    std::vector<Tensor> pieces;
    for (const TokenRange& range : exchange_->own()) {
      pieces.push_back(all.slice(-1, range.begin, range.end));
    }
    return torch::cat(pieces, -1);
  };
  Batch mine = batch;
  mine.ids = own(batch.ids);
  mine.labels = own(batch.labels);
  mine.positions =
      own(batch.positions ? *batch.positions : torch::arange(tokens, batch.ids.options()));
  if (batch.answer_rows) {
    mine.answer_rows =
        (mine.labels.flatten() != nn::CrossEntropyOptions().ignore_index()).nonzero().squeeze(1);
  }
  return mine;
}

Tensor ContextParallel::attend(nn::Route route, const nn::HeadTensors& heads) {
  const AttentionOptions& o = heads.options;
  if (o.bounds().right > 0 || o.mask() || o.key_starts() || o.key_lengths()) {
    throw Error(
        "diffattn: context parallel: expected causal attention without padding, got another mask");
  }
  const bool packed = o.cu_seqlens_q().has_value();
  nn::HeadTensors rows = heads;
  if (packed) {  // as a batch of one row
    const auto as_batch = [](const Tensor& x) { return x.unsqueeze(0); };
    for_queries(rows, as_batch);
    for_keys(rows, as_batch);
    if (heads.lambda.dim() == 2) rows.lambda = heads.lambda.unsqueeze(0);
  }
  const Tensor out = by_heads_ ? by_heads(route, rows) : by_keys(route, rows);
  return packed ? out.squeeze(0) : out;
}

namespace {

/// Calls the attention of a process that has all it needs. Packed sequences are a batch of one row.
Tensor attend_rows(nn::Route route, nn::HeadTensors h) {
  if (!h.options.cu_seqlens_q()) return nn::attend_here(route, h);
  const auto packed = [](const Tensor& x) { return x.squeeze(0); };
  for_queries(h, packed);
  for_keys(h, packed);
  if (h.lambda.dim() == 3) h.lambda = h.lambda.squeeze(0);
  return nn::attend_here(route, h).unsqueeze(0);
}

}  // namespace

Tensor ContextParallel::by_heads(nn::Route route, nn::HeadTensors h) const {
  const auto to_heads = [&](const Tensor& x) { return moved(exchange_, Move::kToHeads, x); };
  const int64_t heads = h.q1.size(2) / size_;
  if (is_per_token(h)) {
    h.lambda = to_heads(h.lambda.unsqueeze(-1)).squeeze(-1);
  } else if (h.lambda.numel() > 1) {
    h.lambda = h.lambda.narrow(0, exchange_->rank() * heads, heads);
  }
  for_queries(h, to_heads);
  for_keys(h, to_heads);
  return moved(exchange_, Move::kToRows, attend_rows(route, h));
}

ContextParallel::PackedKeys ContextParallel::packed_keys(const Tensor& cu_seqlens) const {
  const Tensor ends = cu_seqlens.to(torch::kCPU, torch::kLong);
  const auto* at = ends.const_data_ptr<int64_t>();
  std::vector<int32_t> rows{0}, columns{0};
  std::vector<Tensor> keys;
  for (const TokenRange& own : exchange_->own()) {
    for (int64_t s = 0; s + 1 < ends.numel(); ++s) {
      const int64_t begin = std::max(own.begin, at[s]), end = std::min(own.end, at[s + 1]);
      if (begin >= end) continue;
      rows.push_back(rows.back() + static_cast<int32_t>(end - begin));
      columns.push_back(columns.back() + static_cast<int32_t>(end - at[s]));
      keys.push_back(torch::arange(at[s], end, torch::kLong));
    }
  }
  const auto device = cu_seqlens.device();
  return {torch::tensor(rows, torch::kInt32).to(device),
          torch::tensor(columns, torch::kInt32).to(device), torch::cat(keys).to(device)};
}

// The operator aligns the last row with the last column, so a piece of a sequence sees its columns
// up to the piece's end.
Tensor ContextParallel::by_keys(nn::Route route, nn::HeadTensors h) const {
  for_keys(h, [&](const Tensor& x) { return moved(exchange_, Move::kGather, x); });
  if (const auto& cu_seqlens = h.options.cu_seqlens_q()) {
    const PackedKeys packed = packed_keys(*cu_seqlens);
    for_keys(h, [&](const Tensor& x) { return x.index_select(1, packed.keys); });
    h.options.cu_seqlens_q(packed.cu_seqlens_q).cu_seqlens_k(packed.cu_seqlens_k);
    return attend_rows(route, h);
  }
  std::vector<Tensor> outs;
  int64_t begin = 0;
  for (const TokenRange& own : exchange_->own()) {
    nn::HeadTensors piece = h;
    const auto rows = [&](const Tensor& x) { return x.narrow(1, begin, own.size()); };
    for_queries(piece, rows);
    for_keys(piece, [&](const Tensor& x) { return x.slice(1, 0, own.end); });
    if (is_per_token(h)) piece.lambda = rows(h.lambda);
    outs.push_back(attend_rows(route, piece));
    begin += own.size();
  }
  return torch::cat(outs, 1);
}

}  // namespace diffattn::train
