// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/corpus.h"

#include <algorithm>
#include <optional>

#include "data/split.h"
#include "diffattn/io/error.h"
#include "io/hash.h"

namespace diffattn::data {
namespace {

constexpr size_t kFewDocuments = 20;

}  // namespace

struct Corpus::Store {
  std::vector<TokenId> tokens;
  std::optional<io::TokenFile> file;
  uint64_t content = 0;  // a hash of the tokens

  uint64_t size() const { return file ? file->tokens() : tokens.size(); }
};

Corpus::Corpus(std::shared_ptr<const Store> store, std::vector<Document> documents)
    : store_(std::move(store)) {
  io::Hash64 hash(store_->content);
  for (const Document& document : documents) {
    tokens_ += document.end - document.begin;
    hash.update(std::as_bytes(std::span(&document, 1)));
  }
  fingerprint_ = hash.digest();
  documents_ = std::make_shared<const std::vector<Document>>(std::move(documents));
}

Corpus Corpus::of_tokens(std::vector<TokenId> tokens, std::vector<Document> documents) {
  for (const Document& document : documents) {
    if (document.begin > document.end || document.end > tokens.size()) {
      throw io::Error("corpus", "expected documents inside " + std::to_string(tokens.size()) +
                                    " tokens, got " + std::to_string(document.begin) + " to " +
                                    std::to_string(document.end));
    }
  }
  auto store = std::make_shared<Store>();
  io::Hash64 hash;
  hash.update(std::as_bytes(std::span(std::as_const(tokens))));
  store->content = hash.digest();
  store->tokens = std::move(tokens);
  return {std::move(store), std::move(documents)};
}

Corpus Corpus::of_file(io::TokenFile file) {
  std::vector<Document> documents;
  documents.reserve(file.document_ends().size());
  for (uint64_t begin = 0; const uint64_t end : file.document_ends()) {
    documents.push_back({begin, end});
    begin = end;
  }
  auto store = std::make_shared<Store>();
  store->content = file.header().checksum;
  store->file.emplace(std::move(file));
  return {std::move(store), std::move(documents)};
}

bool Corpus::has_labels() const noexcept {
  return std::ranges::any_of(documents(), [](const Document& d) { return d.end - d.begin >= 2; });
}

void Corpus::read(uint64_t begin, std::span<TokenId> out) const {
  if (store_->file) {
    store_->file->read(begin, out);
    return;
  }
  const auto& tokens = store_->tokens;
  if (begin > tokens.size() || out.size() > tokens.size() - begin) {
    throw io::Error("corpus", "expected a range within " + std::to_string(tokens.size()) +
                                  " tokens, got " + std::to_string(out.size()) + " from " +
                                  std::to_string(begin));
  }
  std::copy_n(tokens.begin() + static_cast<ptrdiff_t>(begin), out.size(), out.begin());
}

std::pair<Corpus, Corpus> Corpus::split(double fraction, uint64_t seed) const {
  const std::vector<Document>& all = documents();
  const SplitRule rule(all.size(), fraction, seed);
  std::vector<Document> first, second;
  for (uint64_t i = 0; i < all.size(); ++i) {
    if (all.size() >= kFewDocuments) {
      (rule.second(i) ? second : first).push_back(all[i]);
      continue;
    }
    const uint64_t size = all[i].end - all[i].begin;
    auto tail = static_cast<uint64_t>(static_cast<double>(size) * fraction);
    if (tail == 0 && fraction > 0 && size > 1) tail = 1;
    const uint64_t cut = all[i].end - tail;
    if (cut > all[i].begin) first.push_back({all[i].begin, cut});
    if (cut < all[i].end) second.push_back({cut, all[i].end});
  }
  return {Corpus(store_, std::move(first)), Corpus(store_, std::move(second))};
}

}  // namespace diffattn::data
