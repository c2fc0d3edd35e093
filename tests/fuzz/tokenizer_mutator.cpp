// SPDX-License-Identifier: Apache-2.0
//
// Mutations that keep a tokenizer.json valid most of the time: they add, repeat and change the
// steps of a section, tokens and merges.

#include <array>
#include <iterator>

#include "tests/fuzz/json_mutator.h"

namespace {

using namespace diffattn::fuzz;

struct Section {
  const char* name;   // of the section
  const char* steps;  // of the list in its Sequence
};
constexpr std::array<Section, 4> kSections = {{{"normalizer", "normalizers"},
                                               {"pre_tokenizer", "pretokenizers"},
                                               {"post_processor", "processors"},
                                               {"decoder", "decoders"}}};

/// Returns a random token of the vocabulary, or "a".
std::string any_token(const json& document, Random& random) {
  const json::json_pointer place("/model/vocab");
  if (!document.contains(place) || !document.at(place).is_object()) return "a";
  const json& vocabulary = document.at(place);
  if (vocabulary.empty()) return "a";
  return std::next(vocabulary.begin(), static_cast<int>(random() % vocabulary.size())).key();
}

json new_step(const char* section, const json& document, Random& random) {
  const std::string one = any_token(document, random), other = any_token(document, random);
  const bool flag = random() % 2 == 0;
  const json replace = {{"type", "Replace"},
                        {"pattern", {{"String", one}}},
                        {"content", mutate_text(other, one, random)}};
  const json metaspace = {{"type", "Metaspace"},
                          {"replacement", flag ? "\xe2\x96\x81" : one},
                          {"prepend_scheme", random() % 2 == 0 ? "always" : "first"},
                          {"split", flag}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", flag}, {"use_regex", flag}};
  const std::string_view name(section);
  if (name == "normalizer") {
    const std::array<json, 4> steps = {
        replace, replace, {{"type", "NFC"}}, {{"type", "Prepend"}, {"prepend", one}}};
    return steps[random() % steps.size()];
  }
  if (name == "pre_tokenizer") {
    const std::array<json, 3> steps = {
        metaspace, byte_level, {{"type", "Digits"}, {"individual_digits", flag}}};
    return steps[random() % steps.size()];
  }
  if (name == "post_processor") {
    const std::array<json, 2> steps = {
        byte_level, {{"type", "BertProcessing"}, {"sep", {one, 0}}, {"cls", {other, 1}}}};
    return steps[random() % steps.size()];
  }
  const std::array<json, 7> steps = {
      replace,
      replace,
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}},
      metaspace,
      byte_level,
      {{"type", "Strip"}, {"content", one}, {"start", random() % 3}, {"stop", 0}}};
  return steps[random() % steps.size()];
}

/// Adds a step to a section, which becomes a Sequence if it has one step.
void add_step(json& document, Random& random) {
  const Section& section = kSections[random() % kSections.size()];
  json step = new_step(section.name, document, random);
  json& old = document[section.name];
  if (!old.is_object() || random() % 8 == 0) {
    old = std::move(step);
    return;
  }
  if (!old.contains(section.steps) || !old[section.steps].is_array()) {
    old = {{"type", "Sequence"}, {section.steps, json::array({old})}};
  }
  json& steps = old[section.steps];
  if (!steps.empty() && random() % 3 == 0) step = json(steps[random() % steps.size()]);
  steps.insert(steps.begin() + static_cast<int>(random() % (steps.size() + 1)), std::move(step));
}

/// Adds a token and, if it joins two others, usually their merge.
void add_token(json& document, Random& random) {
  json& model = document["model"];
  if (!model.is_object()) return;
  json& vocabulary = model["vocab"];
  json& merges = model["merges"];
  if (!vocabulary.is_object() || !merges.is_array()) return;
  const std::string first = any_token(document, random), second = any_token(document, random);
  vocabulary[first + second] = vocabulary.size();
  if (random() % 4 != 0) merges.push_back(json::array({first, second}));
}

void add_added_token(json& document, Random& random) {
  json& list = document["added_tokens"];
  if (!list.is_array()) list = json::array();
  list.push_back({{"id", 16 + list.size()},
                  {"content", any_token(document, random) + any_token(document, random)},
                  {"special", random() % 2 == 0},
                  {"normalized", random() % 2 == 0},
                  {"single_word", random() % 4 == 0},
                  {"lstrip", random() % 4 == 0},
                  {"rstrip", random() % 4 == 0}});
}

void mutate_tokenizer(json& document, Random& random) {
  if (!document.is_object()) return mutate_value(document, random);
  switch (random() % 8) {
    case 0:
    case 1:
    case 2: add_step(document, random); break;
    case 3: add_token(document, random); break;
    case 4: add_added_token(document, random); break;
    default: mutate_value(document, random);
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return mutate_document(data, size, max_size, seed, mutate_tokenizer);
}
