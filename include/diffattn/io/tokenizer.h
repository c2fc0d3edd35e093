// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Byte-pair-encoding tokenizers in the `tokenizer.json` format of Hugging Face.

namespace diffattn::io {

using TokenId = std::uint32_t;

inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;
inline constexpr std::size_t kMaxVocabulary = std::size_t{1} << 24;
inline constexpr std::size_t kMaxTokenBytes = 4096;
inline constexpr std::size_t kMaxAddedTokens = std::size_t{1} << 16;
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kEndOfText[] = "<|endoftext|>";

/// A token found in the text before anything else looks at it.
struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = false;      // left out by decoding on request
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalised text
};

struct EncodeOptions {
  /// What the post-processor puts around a text (begin and end of sequence).
  bool add_special_tokens = true;
  /// Whether special tokens written out in the text count as such. Off for untrusted text.
  bool special_from_text = true;
};

/// Text to ids and back. Immutable and cheap to copy; every member may be called from several
/// threads at once.
///
/// Takes any bytes as text: what is not valid UTF-8 keeps its bytes, each a character that is
/// neither letter, number nor space, and a byte-level tokenizer gives them back unchanged.
/// Ids are those of the `tokenizers` library for every text that is valid UTF-8, except that NFC
/// follows Unicode 16.0. Encoding takes time linear in the text, but for words beyond some thousand
/// bytes, which take n log n.
class Tokenizer {
 public:
  struct Impl;  // opaque
  /// Bytes as ids 0 to 255 and kEndOfText as 256.
  static Tokenizer bytes();
  /// Reads a tokenizer.json, or tokenizer.json in a folder. Refuses with Error what it does not
  /// know: other models than BPE, other steps than those below, patterns it has no matcher for.
  ///   normalizer      NFC, Replace (of a string), Prepend, Sequence
  ///   pre_tokenizer   ByteLevel, Split (GPT-2, Llama 3, Qwen 2, o200k patterns), Digits,
  ///   Metaspace,
  ///                   Sequence
  ///   post_processor  TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing, Sequence
  ///   decoder         ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence
  /// `truncation` and `padding` are kept but not applied: rows are the caller's business.
  static Tokenizer read(const std::string& path);
  /// The same from text; file is for messages.
  static Tokenizer parse(std::string_view json, const std::string& file);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Appends to ids instead.
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids) const;

  /// The bytes that ids stand for. Ids without a token are left out, as are special tokens on
  /// request.
  std::string decode_bytes(std::span<const TokenId> ids, bool skip_special_tokens = true) const;
  /// The same as valid UTF-8: ill-formed parts become U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const;

  /// One more than the largest id.
  std::size_t vocab_size() const noexcept;
  /// The id of a token as it stands in the file (in byte-level files a space is U+0120).
  std::optional<TokenId> token_to_id(std::string_view token) const;
  /// The token as it stands in the file, or nothing.
  std::optional<std::string_view> id_to_token(TokenId id) const;
  bool is_special(TokenId id) const;
  const std::vector<AddedToken>& added_tokens() const noexcept;
  /// What the post-processor puts before and behind a text.
  std::span<const TokenId> prefix() const noexcept;
  std::span<const TokenId> suffix() const noexcept;
  /// The token that ends a document: the last of suffix(), else the first special token with a
  /// name in use for it (kEndOfText, </s>, <|end_of_text|>, <|im_end|>, <eos>, ...), else nothing.
  std::optional<TokenId> end_of_text() const;

  /// The tokenizer.json, a function of content alone: the vocabulary ordered by id.
  std::string to_json() const;
  /// Writes to_json() through an AtomicFile.
  void write(const std::string& path) const;
  /// Of to_json(); token files carry it.
  std::uint64_t hash() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// The tokenizer of a model folder, or nothing when it has none. Throws Error for a folder that
/// cannot be opened, and as Tokenizer::read().
std::optional<Tokenizer> tokenizer_in(const std::string& folder);

/// Decodes ids as they come. What a call returns is valid UTF-8: bytes of a character that is not
/// complete yet are held back. All returned pieces together are decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens = true);
  std::string push(TokenId id);
  /// What is still held back, as U+FFFD. The next push() begins a new text.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  bool any_ = false;          // a token has come
  bool at_begin_ = true;      // of the text: what the decoder strips there may still follow
  std::size_t stripped_ = 0;  // so far
  std::string held_;          // bytes of a character that is not complete
};

}  // namespace diffattn::io
