// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/normalizer.h"

#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/sections.h"
#include "io/unicode/nfc.h"

namespace diffattn::io {

Normalizer::Normalizer(const JsonValue& section) {
  for_each_step(section, "normalizers", [&](const JsonValue& step) { add(step); });
}

void Normalizer::add(const JsonValue& step) {
  const std::string type = section_type(step);
  if (type == "NFC") {
    steps_.emplace_back(Nfc{});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace(step));
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{StepPlace(step), step.at("prepend").to_string(kMaxTokenBytes)});
  } else {
    step.at("type").fail("NFC, Replace, Prepend or Sequence");
  }
}

std::string Normalizer::apply(std::string_view text, GrowthBudget& budget) const {
  std::string out(text);
  for (const auto& step : steps_) {
    if (const auto* replace = std::get_if<Replace>(&step)) {
      out = replace->apply(out, budget);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (out.empty()) continue;
      budget.check(out.size() + prepend->text.size(), prepend->place);
      out.insert(0, prepend->text);
    } else {
      out = unicode::nfc(out);
    }
  }
  budget.spend(out.size());
  return out;
}

}  // namespace diffattn::io
