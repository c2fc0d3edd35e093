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

using TokenId = uint32_t;

inline constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;
inline constexpr size_t kMaxVocabulary = size_t{1} << 24;
inline constexpr size_t kMaxTokenBytes = 4096;
inline constexpr size_t kMaxTextBytes = 0xfffffffe;  // encode() counts positions in 32 bits
inline constexpr size_t kMaxAddedTokens = size_t{1} << 16;
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kEndOfText[] = "<|endoftext|>";

/// A token that the tokenizer finds in the text before any other step.
struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = false;      // decode() can omit it
  bool single_word = false;  // matches only if no word character touches it
  bool lstrip = false;       // the match includes the white space before it
  bool rstrip = false;       // the match includes the white space after it
  bool normalized = false;   // matches in the normalised text
};

struct EncodeOptions {
  /// Adds the tokens of the post-processor (begin and end of sequence).
  bool add_special_tokens = true;
  /// Recognises special tokens that are written out in the text. Turn this off for untrusted text.
  bool special_from_text = true;
  /// Parts of the text that are untrusted: no special token that touches one is recognised. In
  /// order, and apart from each other.
  struct Range {
    size_t begin = 0, end = 0;
  };
  std::span<const Range> untrusted = {};
};

/// Converts text to ids and back. Immutable, cheap to copy and thread-safe.
///
/// Text may be any bytes. Each byte that is not valid UTF-8 counts as a character that is neither
/// letter, number nor space; byte-level tokenizers decode it unchanged. For valid UTF-8 the ids are
/// those of the `tokenizers` library, except that NFC follows Unicode 16.0. Encoding takes time
/// linear in the text, and n log n for words beyond some thousand bytes.
class Tokenizer {
 public:
  struct Impl;  // opaque
  /// Returns a tokenizer with the bytes as ids 0 to 255 and kEndOfText as 256.
  static Tokenizer bytes();
  /// Reads a tokenizer.json, or the tokenizer.json in a folder. Throws Error for models other than
  /// BPE, steps that are not listed below, and unknown patterns.
  ///   normalizer      NFC, Replace (of a string), Prepend, Sequence
  ///   pre_tokenizer   ByteLevel, Split (GPT-2, Llama 3, Qwen 2 and o200k patterns),
  ///                   Digits, Metaspace, Sequence
  ///   post_processor  TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing, Sequence
  ///   decoder         ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence
  /// A section has at most 16 steps. The decoder and the normalizer may lengthen the tokens of the
  /// file to 8 times their bytes and 64 KiB; read() throws Error beyond that.
  /// to_json() keeps `truncation` and `padding`, but encode() ignores them.
  static Tokenizer read(const std::string& path);
  /// Like read(), but parses text; file is only used for messages.
  static Tokenizer parse(std::string_view json, const std::string& file);

  /// Throws Error if text has more than kMaxTextBytes bytes, or if the normalizer lengthens it to
  /// more than 64 times its bytes and 64 KiB.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Appends the ids to `ids`.
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids) const;

  /// Returns the bytes that ids stand for. Omits ids without a token and, if skip_special_tokens is
  /// true, special tokens.
  std::string decode_bytes(std::span<const TokenId> ids, bool skip_special_tokens = true) const;
  /// Like decode_bytes(), but replaces ill-formed UTF-8 with U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const;

  /// One more than the largest id.
  size_t vocab_size() const noexcept;
  /// Returns the id of a token, spelled as in the file (byte-level files write a space as U+0120).
  std::optional<TokenId> token_to_id(std::string_view token) const;
  /// Returns the token as the file spells it, or nullopt.
  std::optional<std::string_view> id_to_token(TokenId id) const;
  bool is_special(TokenId id) const;
  const std::vector<AddedToken>& added_tokens() const noexcept;
  /// The tokens that the post-processor adds before and after a text.
  std::span<const TokenId> prefix() const noexcept;
  std::span<const TokenId> suffix() const noexcept;
  /// Returns the token that ends a document: the last of suffix(), else the first special token
  /// with a usual name (kEndOfText, </s>, <|end_of_text|>, <|im_end|>, <eos>, ...), else nullopt.
  std::optional<TokenId> end_of_text() const;

  /// Returns the tokenizer.json. Equal tokenizers give equal text: the vocabulary is ordered by id.
  std::string to_json() const;
  /// Writes to_json() through an AtomicFile.
  void write(const std::string& path) const;
  /// Returns the hash of to_json(), which token files store.
  uint64_t hash() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Returns the tokenizer of a model folder, or nullopt if it has none. Throws Error if the folder
/// cannot be opened, or if Tokenizer::read() throws.
std::optional<Tokenizer> tokenizer_in(const std::string& folder);

/// Decodes a stream of ids. Each call returns valid UTF-8 and keeps the bytes of an incomplete
/// character for the next call. All pieces together equal decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens = true);
  std::string push(TokenId id);
  /// Ends the text: returns U+FFFD for an incomplete character. The next push() begins a new text.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  bool any_ = false;      // this text has had a token
  bool at_begin_ = true;  // the decoder may still strip characters at the start
  size_t stripped_ = 0;   // characters stripped so far
  std::string held_;      // bytes of an incomplete character
};

}  // namespace diffattn::io
