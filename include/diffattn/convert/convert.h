// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diffattn/io/safetensors.h"

/// Model folders from one published layout to another, tensor by tensor: at no time is more than
/// one tensor of the source in memory. Free of torch.
namespace diffattn::convert {

enum class Format {
  kMicrosoft,    // "microsoft": V1, `model_type` "diffattn" with `attention` "microsoft_v1"
  kMicrosoftV2,  // "microsoft_v2": the same with "microsoft_v2"
  kDiffLlama,    // "diffllama": Hugging Face DiffLlama
  kLlama,        // "llama": Hugging Face Llama
  kMotif,        // "motif": Motif 2.6B and 12.7B, to be read only
  kPhi4Flash,    // "phi4_flash": Phi-4-mini-flash, to be read only
  kDiffattn,     // "diffattn": what reads Motif and Phi-4-flash here, to be written only
};

const std::vector<std::string>& format_names();
std::optional<Format> parse_format(std::string_view name);
std::string_view format_name(Format format);

/// Which keys met which queries when a Microsoft model with shared kv heads was trained.
enum class GqaPairing {
  kPaired,       // Microsoft's flash files
  kLegacyNaive,  // Microsoft's naive file: becomes a model with a kv head for every head
};

/// One tensor of the result.
struct TensorReport {
  io::TensorSpec tensor;
  std::string source;  // its name in the source; empty when it was made
  std::string what;    // "copied", "rows permuted", ...
  bool exact = true;   // no number was rounded
};

/// Something of the source that the result does not have, and why.
struct Left {
  std::string name, why;
};

struct Report {
  Format from = Format::kDiffLlama, to = Format::kDiffLlama;
  std::vector<TensorReport> tensors;  // sorted by name
  std::vector<Left> left;             // tensors and files
  std::vector<std::string> files;     // carried over
  std::vector<std::string> weights;   // file names of the weights; empty after a dry run
  std::vector<std::string> notes;     // what the user should know before using the result
  std::uint64_t bytes = 0;            // of tensors written
};

struct Options {
  std::optional<Format> from;  // default: what config.json says
  Format to = Format::kDiffLlama;
  GqaPairing pairing = GqaPairing::kPaired;
  /// Motif and Phi-4-flash have parts that do not exist here: keep the attention layers.
  bool attention_only = false;
  bool force = false;    // replace a model folder that is there already
  bool dry_run = false;  // check everything, write nothing
  io::Symlinks symlinks = io::Symlinks::kRefuse;
  std::uint64_t max_shard_bytes = std::uint64_t{50} << 30;
  std::uint64_t seed = 0;  // of the second maps that a Llama is given
  /// (part of a source name, what stands there instead): one after another, each where it first
  /// fits. One that fits no name is an error.
  std::vector<std::pair<std::string, std::string>> renames;
  /// Called after each tensor with bytes done and in all. May throw: nothing is left behind then.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};

/// Reads the model folder `source`, writes the model folder `target`, which appears complete or not
/// at all. Tokenizer and other files are carried over; weights in other formats and code are not.
///
/// Throws io::Error: a pair of formats without a conversion; tensors that are missing, unknown or
/// of another shape; a source whose function the target cannot have (see docs/convert.md); a target
/// that exists; a full disk.
Report convert(const std::string& source, const std::string& target, const Options& options);

}  // namespace diffattn::convert
