// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/packed_rows.h"

#include <map>
#include <random>

#include "tests/io/test_files.h"

namespace diffattn::data::packed_rows_test {
namespace {

using io::testing::error_of;
using io::testing::holds;

/// Returns a corpus in which token t of document d is 1000 d + t.
Corpus numbered_corpus(unsigned seed, size_t documents, size_t longest) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  std::vector<Document> places;
  for (size_t d = 0; d < documents; ++d) {
    const uint64_t begin = tokens.size();
    const size_t length = 1 + random() % longest;
    for (size_t t = 0; t < length; ++t) tokens.push_back(static_cast<TokenId>(1000 * d + t));
    places.push_back({begin, tokens.size()});
  }
  return Corpus::of_tokens(std::move(tokens), std::move(places));
}

int64_t length_of(const Corpus& corpus, int64_t document) {
  const Document& d = corpus.documents()[static_cast<size_t>(document)];
  return static_cast<int64_t>(d.end - d.begin);
}

/// Checks the fields of a batch against its token ids.
void expect_consistent(const RowBatch& batch, const Corpus& corpus, const RowOptions& options) {
  const auto total = static_cast<size_t>(batch.rows * batch.seq_len);
  ASSERT_EQ(batch.seq_len, options.seq_len);
  ASSERT_EQ(batch.ids.size(), total);
  ASSERT_EQ(batch.labels.size(), total);
  ASSERT_EQ(batch.positions.size(), total);
  ASSERT_EQ(batch.cu_seqlens.front(), 0);
  ASSERT_EQ(batch.cu_seqlens.back(), static_cast<int32_t>(total));
  int64_t longest = 0;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    const int32_t begin = batch.cu_seqlens[s], end = batch.cu_seqlens[s + 1];
    ASSERT_LT(begin, end);
    // A segment stays in one row and in one document.
    ASSERT_EQ(begin / batch.seq_len, (end - 1) / batch.seq_len);
    longest = std::max<int64_t>(longest, end - begin);
    for (int32_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(batch.positions[at], i - begin);
      if (i > begin) {
        ASSERT_EQ(batch.ids[at], batch.ids[at - 1] + 1);
      }
      const int64_t document = batch.ids[at] / 1000, place = batch.ids[at] % 1000;
      const bool last = place + 1 == length_of(corpus, document);
      ASSERT_EQ(batch.labels[at], last ? kIgnoredLabel : batch.ids[at] + 1);
    }
  }
  ASSERT_EQ(batch.max_segment, longest);
}

TEST(PackedRows, EveryTokenOncePerEpoch) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    const Corpus corpus = numbered_corpus(seed, 1 + seed % 9, 90);
    const RowOptions options{.seq_len = 1 + seed % 17,
                             .batch_size = 1 + seed % 4,
                             .seed = seed,
                             .shuffle = seed % 3 != 0};
    PackedRows rows(corpus, options);
    std::map<int64_t, int> seen;
    const auto epochs = 3;
    uint64_t left = epochs * corpus.tokens();
    while (left > 0) {
      const RowBatch batch = rows.next();
      expect_consistent(batch, corpus, options);
      ASSERT_FALSE(HasFatalFailure()) << seed;
      for (const int64_t id : batch.ids) {
        if (left == 0) break;
        --left;
        ++seen[id];
      }
    }
    EXPECT_EQ(seen.size(), corpus.tokens());
    for (const auto& [id, count] : seen) ASSERT_EQ(count, epochs) << id;
  }
}

TEST(PackedRows, InOrderWithoutShuffling) {
  const Corpus corpus = numbered_corpus(1, 4, 30);
  PackedRows rows(corpus, {.seq_len = 8, .batch_size = 1, .shuffle = false, .endless = false});
  std::vector<int64_t> ids;
  for (RowBatch batch = rows.next(); batch.rows > 0; batch = rows.next()) {
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
  std::vector<TokenId> expected(corpus.tokens());
  corpus.read(0, expected);
  ASSERT_GE(ids.size(), expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), ids.begin()));
}

TEST(PackedRows, OnePassEndsWithTheText) {
  const Corpus corpus = Corpus::of_tokens({5, 6, 7, 8, 9}, {{0, 3}, {3, 5}});
  PackedRows rows(corpus, {.seq_len = 4, .batch_size = 3, .shuffle = false, .endless = false});
  const RowBatch batch = rows.next();
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.ids, (std::vector<int64_t>{5, 6, 7, 8, 9}));
  EXPECT_EQ(batch.labels, (std::vector<int64_t>{6, 7, -100, 9, -100}));
  EXPECT_EQ(batch.positions, (std::vector<int64_t>{0, 1, 2, 0, 0}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 4, 5}));
  EXPECT_EQ(rows.next().rows, 0);
  EXPECT_EQ(rows.next().rows, 0);
}

TEST(PackedRows, ResumesExactlyAtEveryBatch) {
  const Corpus corpus = numbered_corpus(2, 7, 50);
  const RowOptions options{.seq_len = 13, .batch_size = 2, .seed = 4};
  PackedRows rows(corpus, options);
  std::vector<std::string> positions;
  std::vector<std::vector<int64_t>> batches;
  for (int i = 0; i < 40; ++i) {
    positions.push_back(rows.position());
    batches.push_back(rows.next().ids);
  }
  EXPECT_GT(rows.epoch(), 2u);
  for (size_t i = 0; i < positions.size(); ++i) {
    PackedRows resumed(corpus, options);
    resumed.seek(positions[i]);
    EXPECT_EQ(resumed.position(), positions[i]);
    for (size_t k = i; k < std::min(i + 5, batches.size()); ++k) {
      ASSERT_EQ(resumed.next().ids, batches[k]) << i << " " << k;
    }
  }
}

TEST(PackedRows, RanksShareTheRows) {
  const Corpus corpus = numbered_corpus(3, 9, 60);
  PackedRows alone(corpus, {.seq_len = 10, .batch_size = 6, .seed = 1});
  std::vector<PackedRows> ranks;
  for (int64_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(
        corpus,
        RowOptions{.seq_len = 10, .batch_size = 2, .seed = 1, .rank = rank, .world_size = 3});
  }
  for (int step = 0; step < 12; ++step) {
    const RowBatch whole = alone.next();
    for (int64_t rank = 0; rank < 3; ++rank) {
      const RowBatch part = ranks[static_cast<size_t>(rank)].next();
      ASSERT_EQ(part.rows, 2);
      for (int64_t row = 0; row < 2; ++row) {
        const auto from = whole.ids.begin() + (3 * row + rank) * 10;
        EXPECT_TRUE(std::equal(from, from + 10, part.ids.begin() + row * 10));
      }
    }
    EXPECT_EQ(ranks[0].position(), ranks[2].position());
    EXPECT_EQ(alone.position(), ranks[1].position());  // a run may continue with other ranks
  }
}

TEST(PackedRows, EpochsAndSeedsDiffer) {
  const Corpus corpus = numbered_corpus(5, 40, 8);
  const auto first_ids = [&](uint64_t seed) {
    return PackedRows(corpus, {.seq_len = 32, .batch_size = 1, .seed = seed}).next().ids;
  };
  EXPECT_EQ(first_ids(1), first_ids(1));
  EXPECT_NE(first_ids(1), first_ids(2));
}

TEST(PackedRows, PositionsOfOtherRunsAreRefused) {
  const Corpus corpus = numbered_corpus(6, 5, 20);
  const RowOptions options{.seq_len = 8, .batch_size = 2, .seed = 1};
  PackedRows rows(corpus, options);
  rows.next();
  const std::string position = rows.position();
  const auto refusal = [&](const Corpus& other, const RowOptions& other_options) {
    PackedRows target(other, other_options);
    return error_of([&] { target.seek(position); });
  };
  EXPECT_TRUE(holds(refusal(numbered_corpus(7, 5, 20), options), "key 'corpus'"));
  RowOptions changed = options;
  changed.seed = 2;
  EXPECT_TRUE(holds(refusal(corpus, changed), "key 'seed'"));
  changed = options;
  changed.seq_len = 9;
  EXPECT_TRUE(holds(refusal(corpus, changed), "key 'seq_len'"));
  changed = options;
  changed.shuffle = false;
  EXPECT_TRUE(holds(refusal(corpus, changed), "key 'shuffle'"));
}

TEST(PackedRows, DamagedPositionsAreErrorsAndChangeNothing) {
  const Corpus corpus = numbered_corpus(8, 5, 20);
  PackedRows rows(corpus, {.seq_len = 8, .batch_size = 2, .seed = 1});
  rows.next();
  const std::string position = rows.position();
  int accepted = 0;
  for (size_t bit = 0; bit < 8 * position.size(); ++bit) {
    std::string damaged = position;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const std::string before = rows.position();
    try {
      rows.seek(damaged);
      ++accepted;
      rows.next();  // must stay inside the corpus
    } catch (const io::Error&) {
      EXPECT_EQ(rows.position(), before);
    }
    rows.seek(position);
  }
  for (size_t size = 0; size < position.size(); ++size) {
    EXPECT_THROW(rows.seek(position.substr(0, size)), io::Error);
  }
  EXPECT_LT(accepted, 40);
}

TEST(PackedRows, OptionsOutOfRange) {
  const Corpus corpus = Corpus::of_tokens({1}, {{0, 1}});
  const auto refusal = [&](const RowOptions& options) {
    return error_of([&] { PackedRows(corpus, options); });
  };
  EXPECT_TRUE(holds(refusal({.seq_len = 0}), "seq_len"));
  EXPECT_TRUE(holds(refusal({.batch_size = 0}), "batch_size"));
  EXPECT_TRUE(holds(refusal({.seq_len = 1 << 20, .batch_size = 1 << 20}), "times"));
  EXPECT_TRUE(holds(refusal({.rank = 1}), "rank"));
  EXPECT_TRUE(holds(error_of([] { PackedRows(Corpus::of_tokens({}, {}), {}); }), "corpus"));
}

}  // namespace
}  // namespace diffattn::data::packed_rows_test
