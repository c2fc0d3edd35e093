// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn {

/// The key sub-head that head j reads for map s (0 or 1) if r query heads share a kv head.
/// Published code differs, so a checkpoint needs the rule that it was trained with.
enum class GqaPairing {
  kPaired,       // sub-head s of kv head j / r: Microsoft's flash files, Hugging Face, vLLM
  kLegacyNaive,  // sub-head (2j + s) / r: Microsoft's naive file and the SDPA forks
};

}  // namespace diffattn
