// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/packed_rows.h"

#include <algorithm>
#include <limits>

#include "data/position.h"
#include "diffattn/data/random.h"
#include "diffattn/io/error.h"

namespace diffattn::data {
namespace {

constexpr char kKind[] = "packed rows";

void expect_within(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw io::Error(name, "expected a number in [" + std::to_string(low) + ", " +
                              std::to_string(high) + "], got " + std::to_string(value));
  }
}

void check_options(const RowOptions& options) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  expect_within("seq_len", options.seq_len, 1, kMost);
  expect_within("batch_size", options.batch_size, 1, kMost);
  expect_within("batch_size times seq_len", options.batch_size * options.seq_len, 1, kMost);
  expect_within("world_size", options.world_size, 1, kMost);
  expect_within("rank", options.rank, 0, options.world_size - 1);
}

std::vector<PositionField> identity(const Corpus& corpus, const RowOptions& options) {
  return {{"corpus", corpus.fingerprint()},
          {"seed", options.seed},
          {"shuffle", options.shuffle},
          {"seq_len", static_cast<uint64_t>(options.seq_len)},
          {"world_size", 1}};  // a position counts the rows of all ranks
}

}  // namespace

PackedRows::PackedRows(Corpus corpus, const RowOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  check_options(options);
  if (corpus_.tokens() == 0) throw io::Error("corpus", "expected tokens, got none");
  const auto longest = static_cast<uint64_t>(options.seq_len);
  piece_ends_.reserve(corpus_.documents().size());
  for (const Document& document : corpus_.documents()) {
    pieces_ += (document.end - document.begin + longest - 1) / longest;
    piece_ends_.push_back(pieces_);
  }
}

uint64_t PackedRows::rows_per_epoch() const noexcept {
  return corpus_.tokens() / static_cast<uint64_t>(options_.seq_len);
}

PackedRows::Piece PackedRows::piece_at(uint64_t index) const {
  const uint64_t number =
      options_.shuffle ? Permutation(pieces_, options_.seed, place_.epoch)(index) : index;
  const auto after = std::upper_bound(piece_ends_.begin(), piece_ends_.end(), number);
  const auto which = static_cast<size_t>(after - piece_ends_.begin());
  const Document& document = corpus_.documents()[which];
  const uint64_t first = which == 0 ? 0 : piece_ends_[which - 1];
  const auto longest = static_cast<uint64_t>(options_.seq_len);
  const uint64_t begin = document.begin + (number - first) * longest;
  return {begin, std::min(begin + longest, document.end), document.end};
}

bool PackedRows::at_end() const { return !options_.endless && place_.epoch > 0; }

RowBatch PackedRows::next() {
  RowBatch batch;
  batch.seq_len = options_.seq_len;
  batch.cu_seqlens.push_back(0);
  for (int64_t row = 0; row < options_.batch_size; ++row) {
    for (int64_t rank = 0; rank < options_.world_size; ++rank) {
      take_row(rank == options_.rank ? &batch : nullptr);
    }
  }
  for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    batch.max_segment =
        std::max<int64_t>(batch.max_segment, batch.cu_seqlens[i] - batch.cu_seqlens[i - 1]);
  }
  return batch;
}

void PackedRows::take_row(RowBatch* batch) {
  if (at_end()) return;
  if (batch != nullptr) ++batch->rows;
  auto room = static_cast<uint64_t>(options_.seq_len);
  while (room > 0) {
    if (at_end()) return;
    Piece piece = piece_at(place_.index);
    piece.begin += place_.offset;
    const uint64_t count = std::min(room, piece.end - piece.begin);
    if (batch != nullptr) write_segment(piece, count, *batch);
    room -= count;
    place_.offset += count;
    if (piece.begin + count < piece.end) continue;
    place_.offset = 0;
    if (++place_.index == pieces_) {
      place_.index = 0;
      ++place_.epoch;
    }
  }
}

void PackedRows::write_segment(const Piece& piece, uint64_t count, RowBatch& batch) const {
  // The label of the last token is the next token of the document, if there is one.
  const bool goes_on = piece.begin + count < piece.document_end;
  std::vector<TokenId> tokens(count + (goes_on ? 1 : 0));
  corpus_.read(piece.begin, tokens);
  for (uint64_t i = 0; i < count; ++i) {
    batch.ids.push_back(tokens[i]);
    batch.labels.push_back(i + 1 < tokens.size() ? int64_t{tokens[i + 1]} : kIgnoredLabel);
    batch.positions.push_back(static_cast<int64_t>(i));
  }
  batch.cu_seqlens.push_back(batch.cu_seqlens.back() + static_cast<int32_t>(count));
}

std::string PackedRows::position() const {
  return write_position(
      kKind, {{"epoch", place_.epoch}, {"index", place_.index}, {"offset", place_.offset}},
      identity(corpus_, options_));
}

void PackedRows::seek(const std::string& position) {
  const auto values =
      read_position(position, kKind, {"epoch", "index", "offset"}, identity(corpus_, options_));
  const Place before = place_;
  place_ = {values[0], values[1], 0};
  if (place_.index >= pieces_) {
    place_ = before;
    throw io::Error("data position", "key 'index': expected a number below " +
                                         std::to_string(pieces_) + ", got " +
                                         std::to_string(values[1]));
  }
  const Piece piece = piece_at(place_.index);
  if (values[2] >= piece.end - piece.begin) {
    place_ = before;
    throw io::Error("data position", "key 'offset': expected a number below " +
                                         std::to_string(piece.end - piece.begin) + ", got " +
                                         std::to_string(values[2]));
  }
  place_.offset = values[2];
}

}  // namespace diffattn::data
