// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/data/corpus.h"

namespace diffattn::data {

/// Labels with this value do not count.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Rows of one length, filled with parts of documents ("segments"); only the last row of one pass
/// may be shorter.
struct RowBatch {
  std::int64_t rows = 0;
  std::int64_t seq_len = 0;
  std::vector<std::int64_t> ids;        // [rows, seq_len]
  std::vector<std::int64_t> labels;     // [rows, seq_len]: the token that follows in its document
  std::vector<std::int64_t> positions;  // [rows, seq_len]: place inside the segment
  /// Where segments of the rows, one row after the other, begin, and the end of the last: no
  /// attention crosses these.
  std::vector<std::int32_t> cu_seqlens;  // [segments + 1]
  std::int64_t max_segment = 0;
};

struct RowOptions {
  std::int64_t seq_len = 1024;
  std::int64_t batch_size = 8;  // rows of one batch, on this rank
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool endless = true;  // else one pass, whose last row ends with the text
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
};

/// A corpus as batches of full rows.
///
/// Documents are cut into pieces of at most seq_len tokens; the pieces, shuffled anew for each
/// epoch (or in order), follow each other without gaps, and rows are cut from that: a piece that
/// does not fit goes on in the next row, as a new segment. Ranks take turns at rows. Which tokens a
/// batch holds depends on the corpus, the options and the number of batches before, and on nothing
/// else.
class PackedRows {
 public:
  /// Throws io::Error for options out of range and an empty corpus.
  PackedRows(Corpus corpus, const RowOptions& options);

  /// The next batch; with rows = 0 at the end of a pass that is not endless.
  RowBatch next();
  std::uint64_t epoch() const noexcept { return place_.epoch; }
  /// Full rows of one epoch, over all ranks.
  std::uint64_t rows_per_epoch() const noexcept;

  /// Where the next batch begins, as JSON text.
  std::string position() const;
  /// Goes to what position() gave; throws io::Error for other text, and when it was another corpus,
  /// seed, length or number of ranks.
  void seek(const std::string& position);

 private:
  struct Place {
    std::uint64_t epoch = 0;
    std::uint64_t index = 0;   // of the next piece, in shuffled order
    std::uint64_t offset = 0;  // tokens of that piece that were taken
  };
  struct Piece {
    std::uint64_t begin = 0, end = 0, document_end = 0;
  };

  Piece piece_at(std::uint64_t index) const;
  bool at_end() const;
  /// Moves on by one row; writes it when batch is given.
  void take_row(RowBatch* batch);
  void write_segment(const Piece& piece, std::uint64_t count, RowBatch& batch) const;

  Corpus corpus_;
  RowOptions options_;
  std::vector<std::uint64_t> piece_ends_;  // for each document: pieces up to its end
  std::uint64_t pieces_ = 0;
  Place place_;
};

}  // namespace diffattn::data
