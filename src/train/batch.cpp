// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/batch.h"

#include <numeric>

#include "diffattn/data/tasks.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

Tensor to_tensor(const std::vector<int64_t>& values) {
  return torch::tensor(values, torch::kInt64);
}

Tensor to_tensor(const data::PaddedBatch& batch) {
  return to_tensor(batch.ids).view({batch.rows, batch.length});
}

std::vector<uint64_t> all_indices(const data::ExampleSet& set) {
  std::vector<uint64_t> all(set.examples.size());
  std::iota(all.begin(), all.end(), uint64_t{0});
  return all;
}

/// Returns a batch with the ids and lengths of the sources.
Batch source_batch(const data::ExampleSet& set, const std::vector<uint64_t>& indices) {
  const data::PaddedBatch sources = data::pad_sources(set, indices, data::kTaskPad);
  Batch batch;
  batch.ids = to_tensor(sources);
  batch.mask.key_lengths(to_tensor(sources.lengths));
  return batch;
}

}  // namespace

nn::DecoderInput Batch::model_input() const {
  nn::DecoderInput input;
  input.ids = ids;
  input.mask = mask;
  input.positions = positions;
  return input;
}

int64_t Batch::label_count() const { return labels.ne(data::kIgnoredLabel).sum().item<int64_t>(); }

int64_t Batch::text_rows() const {
  const auto& lengths = mask.key_lengths();
  return lengths ? lengths->sum().item<int64_t>() : ids.numel();
}

Batch Batch::to(torch::Device device) const {
  if (device.is_cpu()) return *this;
  // From pinned memory the copy waits neither for the device's work nor for the host.
  const auto moved_tensor = [&](const Tensor& tensor) {
    return (tensor.is_cpu() ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/true);
  };
  const auto move = [&](const std::optional<Tensor>& tensor) {
    return tensor ? std::optional(moved_tensor(*tensor)) : std::nullopt;
  };
  Batch moved{moved_tensor(ids),
              moved_tensor(labels),
              mask,
              move(positions),
              move(answer_rows),
              target_ids.defined() ? moved_tensor(target_ids) : target_ids};
  moved.mask.mask(move(mask.mask()))
      .key_starts(move(mask.key_starts()))
      .key_lengths(move(mask.key_lengths()))
      .cu_seqlens_q(move(mask.cu_seqlens_q()))
      .cu_seqlens_k(move(mask.cu_seqlens_k()));
  return moved;
}

Batch packed_batch(const data::RowBatch& rows) {
  Batch batch;
  if (rows.rows == 0) return batch;
  batch.ids = to_tensor(rows.ids);
  batch.labels = to_tensor(rows.labels);
  batch.positions = to_tensor(rows.positions);
  batch.mask.cu_seqlens_q(torch::tensor(rows.cu_seqlens, torch::kInt32));
  return batch;
}

Batch sequence_batch(const data::RowBatch& rows) {
  Batch batch;
  batch.ids = to_tensor(rows.ids).view({rows.rows, rows.seq_len});
  batch.labels = to_tensor(rows.labels).view({rows.rows, rows.seq_len});
  batch.answer_rows = (batch.labels.flatten() != data::kIgnoredLabel).nonzero().squeeze(1);
  return batch;
}

Batch classification_batch(const data::ExampleSet& set) {
  const std::vector<uint64_t> all = all_indices(set);
  Batch batch = source_batch(set, all);
  batch.labels = to_tensor(data::class_labels(set, all));
  return batch;
}

Batch summarization_batch(const data::ExampleSet& set, int64_t begin_token) {
  const std::vector<uint64_t> all = all_indices(set);
  Batch batch = source_batch(set, all);
  const auto begin = static_cast<io::TokenId>(begin_token);
  batch.target_ids = to_tensor(data::pad_targets(set, all, begin, data::kTaskPad));
  batch.labels = to_tensor(data::target_labels(set, all)).view_as(batch.target_ids);
  return batch;
}

}  // namespace diffattn::train
