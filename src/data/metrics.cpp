// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/metrics.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "diffattn/error.h"

namespace diffattn::data {
namespace {

using Words = std::span<const int64_t>;

double f1_of(int64_t common, int64_t one, int64_t other) {
  if (common == 0) return 0.0;
  const double precision = static_cast<double>(common) / static_cast<double>(one);
  const double recall = static_cast<double>(common) / static_cast<double>(other);
  return 2 * precision * recall / (precision + recall);
}

std::map<std::vector<int64_t>, int64_t> ngrams(Words words, size_t n) {
  std::map<std::vector<int64_t>, int64_t> counts;
  for (size_t i = 0; i + n <= words.size(); ++i) {
    ++counts[{words.begin() + static_cast<ptrdiff_t>(i),
              words.begin() + static_cast<ptrdiff_t>(i + n)}];
  }
  return counts;
}

double ngram_f1(Words summary, Words reference, size_t n) {
  const auto ours = ngrams(summary, n), theirs = ngrams(reference, n);
  int64_t common = 0;
  for (const auto& [gram, count] : ours) {
    const auto found = theirs.find(gram);
    if (found != theirs.end()) common += std::min(count, found->second);
  }
  const auto grams = [n](Words words) {
    return words.size() < n ? int64_t{0} : std::ssize(words) - static_cast<int64_t>(n) + 1;
  };
  return f1_of(common, grams(summary), grams(reference));
}

int64_t common_subsequence(Words a, Words b) {
  std::vector<int64_t> row(b.size() + 1, 0);
  for (const int64_t word : a) {
    int64_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = row[j + 1];
      row[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

/// Converts a text to word ids; equal words have equal ids.
std::vector<int64_t> words_of(std::string_view text, std::map<std::string, int64_t>& known) {
  std::vector<int64_t> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) words.push_back(known.emplace(word, std::ssize(known)).first->second);
    word.clear();
  };
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || std::isalnum(byte)) {
      word += byte >= 0x80 ? c : static_cast<char>(std::tolower(byte));
    } else {
      finish();
    }
  }
  finish();
  return words;
}

}  // namespace

Confusion::Confusion(int64_t classes)
    : classes_(classes), counts_(static_cast<size_t>(classes * classes), 0) {}

void Confusion::add(int64_t label, int64_t predicted, int64_t times) {
  for (const int64_t which : {label, predicted}) {
    if (which < 0 || which >= classes_) {
      throw Error("confusion: expected a class below " + std::to_string(classes_) + ", got " +
                  std::to_string(which));
    }
  }
  counts_[static_cast<size_t>(label * classes_ + predicted)] += times;
  total_ += times;
}

int64_t Confusion::count(int64_t label, int64_t predicted) const {
  return counts_.at(static_cast<size_t>(label * classes_ + predicted));
}

double Confusion::accuracy() const {
  int64_t right = 0;
  for (int64_t c = 0; c < classes_; ++c) right += count(c, c);
  return total_ == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(total_);
}

double Confusion::f1(int64_t label) const {
  int64_t said = 0, meant = 0;
  for (int64_t c = 0; c < classes_; ++c) {
    said += count(c, label);
    meant += count(label, c);
  }
  return said + meant == 0 ? 0.0 : f1_of(count(label, label), said, meant);
}

double Confusion::macro_f1() const {
  double sum = 0;
  int64_t occurred = 0;
  for (int64_t label = 0; label < classes_; ++label) {
    int64_t seen = 0;
    for (int64_t c = 0; c < classes_; ++c) seen += count(c, label) + count(label, c);
    if (seen == 0) continue;
    sum += f1(label);
    ++occurred;
  }
  return occurred == 0 ? 0.0 : sum / static_cast<double>(occurred);
}

Rouge& Rouge::operator+=(const Rouge& other) {
  rouge1 += other.rouge1;
  rouge2 += other.rouge2;
  rouge_l += other.rouge_l;
  return *this;
}

Rouge rouge(Words summary, Words reference) {
  if (summary.empty() && reference.empty()) return {1.0, 1.0, 1.0};
  return {
      ngram_f1(summary, reference, 1), ngram_f1(summary, reference, 2),
      f1_of(common_subsequence(summary, reference), std::ssize(summary), std::ssize(reference))};
}

Rouge rouge(std::string_view summary, std::string_view reference) {
  std::map<std::string, int64_t> known;
  const auto ours = words_of(summary, known), theirs = words_of(reference, known);
  return rouge(Words(ours), Words(theirs));
}

}  // namespace diffattn::data
