// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/tokenizer.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "io/hash.h"
#include "io/tokenizer/impl.h"
#include "io/unicode/characters.h"

namespace diffattn::io {
namespace {

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

/// True if text [begin, end) has a byte of one of the ranges.
bool touches(std::span<const EncodeOptions::Range> ranges, size_t begin, size_t end) {
  const auto at = std::ranges::upper_bound(ranges, begin, {}, &EncodeOptions::Range::end);
  return at != ranges.end() && at->begin < end;
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::read(const std::string& path) {
  const std::string file = is_directory(path) ? path + "/" + kTokenizerFile : path;
  return parse(read_text(file, kMaxTokenizerBytes), file);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& file) {
  return Tokenizer(Impl::parse(json, file));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  encode(text, options, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, const EncodeOptions& options,
                       std::vector<TokenId>& ids) const {
  if (text.size() > kMaxTextBytes) {
    throw Error("text to encode", "expected at most " + std::to_string(kMaxTextBytes) +
                                      " bytes, got " + std::to_string(text.size()));
  }
  impl_->encode(text, options, ids);
}

void Tokenizer::Impl::encode(std::string_view text, const EncodeOptions& options,
                             std::vector<TokenId>& ids) const {
  if (options.add_special_tokens) ids.insert(ids.end(), prefix.begin(), prefix.end());
  const auto skip_special = [&](size_t begin, size_t end) {
    return !options.special_from_text || touches(options.untrusted, begin, end);
  };
  GrowthBudget budget(text.size(), GrowthBudget::kTextFactor);
  const auto take = [&](const AddedToken& token) { ids.push_back(token.id); };
  raw_tokens.split(text, skip_special, take, [&](size_t begin, std::string_view piece) {
    const size_t length = piece.size();
    std::string owned;
    if (!normalizer.empty()) {
      owned = normalizer.apply(piece, budget);
      piece = owned;
    }
    // The normalizer moves positions, so an untrusted part counts for the whole piece.
    const bool skip_all = skip_special(begin, begin + length);
    normalized_tokens.split(
        piece, [&](size_t, size_t) { return skip_all; }, take,
        [&](size_t inner_begin, std::string_view inner) {
          encode_words(inner, begin == 0 && inner_begin == 0, ids);
        });
  });
  if (options.add_special_tokens) ids.insert(ids.end(), suffix.begin(), suffix.end());
}

void Tokenizer::Impl::encode_words(std::string_view piece, bool first,
                                   std::vector<TokenId>& ids) const {
  pre_tokenizer.apply(piece, first, [&](std::string_view word) {
    if (cut_marker.empty()) {
      bpe->encode(word, ids);
      return;
    }
    size_t begin = 0;
    for (size_t at = word.find(cut_marker); at != word.npos;) {
      const bool after_marker =
          at >= cut_marker.size() &&
          word.substr(at - cut_marker.size(), cut_marker.size()) == cut_marker;
      if (at > begin && !after_marker) {
        bpe->encode(word.substr(begin, at - begin), ids);
        begin = at;
      }
      at = word.find(cut_marker, at + cut_marker.size());
    }
    bpe->encode(word.substr(begin), ids);
  });
}

std::string Tokenizer::decode_bytes(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string out;
  Decoder::State state;
  for (const TokenId id : ids) {
    if (!id_to_token(id) || (skip_special_tokens && is_special(id))) continue;
    impl_->decoder.append(impl_->pieces[id], state, out);
  }
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return unicode::replace_invalid(decode_bytes(ids, skip_special_tokens));
}

size_t Tokenizer::vocab_size() const noexcept { return impl_->vocabulary.size(); }

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  const TokenId id = impl_->vocabulary.find(token);
  if (id == Vocabulary::kNone) return std::nullopt;
  return id;
}

std::optional<std::string_view> Tokenizer::id_to_token(TokenId id) const {
  const std::string_view token = impl_->vocabulary.token(id);
  if (token.empty()) return std::nullopt;
  return token;
}

bool Tokenizer::is_special(TokenId id) const {
  return id < impl_->special.size() && impl_->special[id];
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const noexcept { return impl_->added; }
std::span<const TokenId> Tokenizer::prefix() const noexcept { return impl_->prefix; }
std::span<const TokenId> Tokenizer::suffix() const noexcept { return impl_->suffix; }

std::optional<TokenId> Tokenizer::end_of_text() const {
  if (!impl_->suffix.empty()) return impl_->suffix.back();
  static constexpr std::array<std::string_view, 8> kNames = {
      kEndOfText,   "</s>",       "<|end_of_text|>", "<eos>",
      "<|eot_id|>", "<|im_end|>", "[SEP]",           "<|end|>"};
  for (const std::string_view name : kNames) {
    const auto id = token_to_id(name);
    if (id && is_special(*id)) return id;
  }
  return std::nullopt;
}

std::string Tokenizer::to_json() const { return impl_->to_json(); }
void Tokenizer::write(const std::string& path) const { write_text(path, to_json()); }
uint64_t Tokenizer::hash() const { return hash64(to_json()); }

std::optional<Tokenizer> tokenizer_in(const std::string& folder) {
  if (!Directory::open(folder).contains(kTokenizerFile)) return std::nullopt;
  return Tokenizer::read(folder);
}

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string StreamDecoder::push(TokenId id) {
  if (!tokenizer_.id_to_token(id)) return "";
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return "";
  Decoder::State state{any_, stripped_, at_begin_};
  tokenizer_.impl_->decoder.append(tokenizer_.impl_->pieces[id], state, held_);
  any_ = state.any;
  stripped_ = state.stripped;
  at_begin_ = state.begin;
  const size_t complete = held_.size() - unicode::incomplete_tail(held_);
  std::string out = unicode::replace_invalid(std::string_view(held_).substr(0, complete));
  held_.erase(0, complete);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = unicode::replace_invalid(held_);
  held_.clear();
  any_ = false;
  at_begin_ = true;
  stripped_ = 0;
  return out;
}

}  // namespace diffattn::io
