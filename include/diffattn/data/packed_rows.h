// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/data/corpus.h"

namespace diffattn::data {

/// A label with this value does not count in the loss.
inline constexpr int64_t kIgnoredLabel = -100;

/// Rows of one length, filled with parts of documents (segments). Only the last row of a pass may
/// be shorter.
struct RowBatch {
  int64_t rows = 0;
  int64_t seq_len = 0;
  std::vector<int64_t> ids;        // [rows, seq_len]
  std::vector<int64_t> labels;     // [rows, seq_len]: the next token of the document
  std::vector<int64_t> positions;  // [rows, seq_len]: position inside the segment
  /// Offsets of the segments in the flattened rows, and the end of the last one. Attention does not
  /// cross them.
  std::vector<int32_t> cu_seqlens;  // [segments + 1]
  int64_t max_segment = 0;
};

struct RowOptions {
  int64_t seq_len = 1024;
  int64_t batch_size = 8;  // rows of one batch on this rank
  uint64_t seed = 0;
  bool shuffle = true;
  bool endless = true;  // false: one pass, whose last row ends with the corpus
  int64_t rank = 0;
  int64_t world_size = 1;
};

/// Cuts a corpus into batches of full rows.
///
/// PackedRows cuts documents into pieces of at most seq_len tokens, shuffles the pieces in each
/// epoch and fills rows with them without gaps. A piece that does not fit continues in the next row
/// as a new segment. Each rank gets every world_size-th row. The content of a batch depends only on
/// the corpus, the options and the number of previous batches.
class PackedRows {
 public:
  /// Throws io::Error if an option is out of range or the corpus is empty.
  PackedRows(Corpus corpus, const RowOptions& options);

  /// Returns the next batch, with rows = 0 after the end of a pass that is not endless.
  RowBatch next();
  uint64_t epoch() const noexcept { return place_.epoch; }
  /// Returns the number of full rows of one epoch, over all ranks.
  uint64_t rows_per_epoch() const noexcept;

  /// Returns the position of the next batch as JSON text.
  std::string position() const;
  /// Moves to a position that position() returned. Throws io::Error for other text, and if the
  /// position belongs to another corpus, seed or seq_len. It may come from another world_size.
  void seek(const std::string& position);

 private:
  struct Place {
    uint64_t epoch = 0;
    uint64_t index = 0;   // of the next piece in shuffled order
    uint64_t offset = 0;  // tokens of that piece already used
  };
  struct Piece {
    uint64_t begin = 0, end = 0, document_end = 0;
  };

  Piece piece_at(uint64_t index) const;
  bool at_end() const;
  /// Advances by one row and appends it to `batch` unless that is null.
  void take_row(RowBatch* batch);
  void write_segment(const Piece& piece, uint64_t count, RowBatch& batch) const;

  Corpus corpus_;
  RowOptions options_;
  std::vector<uint64_t> piece_ends_;  // per document: number of pieces up to its end
  uint64_t pieces_ = 0;
  Place place_;
};

}  // namespace diffattn::data
