// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diffattn/gqa_pairing.h"
#include "diffattn/io/safetensors.h"

/// Converts model folders between published layouts, one tensor at a time: memory never holds more
/// than one tensor of the source. Does not need torch.
namespace diffattn::convert {

enum class Format {
  kMicrosoft,    // "microsoft": V1, `model_type` "diffattn" with `attention` "microsoft_v1"
  kMicrosoftV2,  // "microsoft_v2": the same with "microsoft_v2"
  kDiffLlama,    // "diffllama": Hugging Face DiffLlama
  kLlama,        // "llama": Hugging Face Llama
  kMotif,        // "motif": Motif 2.6B and 12.7B
  kPhi4Flash,    // "phi4_flash": Phi-4-mini-flash
  kDiffattn,     // "diffattn": attention layers of Motif and Phi-4-flash; target only
};

const std::vector<std::string>& format_names();
std::optional<Format> parse_format(std::string_view name);
std::string_view format_name(Format format);

using diffattn::GqaPairing;

/// One tensor of the result.
struct TensorReport {
  io::TensorSpec tensor;
  std::string source;  // name in the source; empty if the tensor is new
  std::string what;    // "copied", "rows permuted", ...
  bool exact = true;   // true if no number was rounded
};

/// A tensor or file of the source that the result does not have, and the reason.
struct Left {
  std::string name, why;
};

struct Report {
  Format from = Format::kDiffLlama, to = Format::kDiffLlama;
  std::vector<TensorReport> tensors;  // sorted by name
  std::vector<Left> left;             // tensors and files that the result does not have
  std::vector<std::string> files;     // copied files
  std::vector<std::string> weights;   // file names of the weights; empty after a dry run
  std::vector<std::string> notes;     // notes for the user of the result
  uint64_t bytes = 0;                 // total size of the written tensors
};

struct Options {
  std::optional<Format> from;  // default: the format that config.json names
  Format to = Format::kDiffLlama;
  /// The rule that a Microsoft source with shared kv heads was trained with. kLegacyNaive gives a
  /// model with one kv head per head.
  GqaPairing pairing = GqaPairing::kPaired;
  /// Converts only the attention layers of Motif and Phi-4-flash. Requires `to` kDiffattn.
  bool attention_only = false;
  bool force = false;    // replace an existing model folder
  bool dry_run = false;  // check everything, write nothing
  /// kRefuse fails if a weight file is a symbolic link, and does not copy other files that are.
  io::Symlinks symlinks = io::Symlinks::kFollow;
  uint64_t max_shard_bytes = uint64_t{50} << 30;
  uint64_t seed = 0;  // random seed for the new second maps of a Llama
  /// Pairs (text, replacement), applied in order. Each replaces the first occurrence of the text in
  /// every tensor name of the source. Throws if no name contains the text.
  std::vector<std::pair<std::string, std::string>> renames;
  /// Called after each tensor with the bytes done and the total. If it throws, convert() removes
  /// the incomplete target.
  std::function<void(uint64_t, uint64_t)> progress;
};

/// Converts the model folder `source` to the model folder `target`. The target appears when it is
/// complete or not at all. Copies the tokenizer and other files, but no code and no weights in
/// other formats.
///
/// Throws io::Error if there is no conversion between the two formats; if tensors are missing,
/// unknown or of the wrong shape; if the target format cannot represent the source's function (see
/// docs/convert.md); if the target exists; or if the disk is full.
Report convert(const std::string& source, const std::string& target, const Options& options);

}  // namespace diffattn::convert
