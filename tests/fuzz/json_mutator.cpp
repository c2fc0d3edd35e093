// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/json_mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace diffattn::fuzz {
namespace {

constexpr size_t kMaxText = 1024;  // longer strings would only make the fuzzer slow

json new_number(const json& old, Random& random) {
  static constexpr std::array<int64_t, 12> kNumbers = {0,
                                                       1,
                                                       2,
                                                       3,
                                                       7,
                                                       16,
                                                       64,
                                                       255,
                                                       4096,
                                                       1 << 20,
                                                       std::numeric_limits<int32_t>::max(),
                                                       std::numeric_limits<int64_t>::max()};
  switch (random() % 6) {
    case 0: return kNumbers[random() % kNumbers.size()];
    case 1: return -kNumbers[random() % kNumbers.size()];
    case 2: return std::numeric_limits<uint64_t>::max();
    case 3: return 0.5 * static_cast<double>(kNumbers[random() % kNumbers.size()]);
    default: break;
  }
  if (!old.is_number_integer()) return 1.5;
  const auto value = static_cast<uint64_t>(old.get<int64_t>());
  return static_cast<int64_t>(random() % 2 == 0 ? value + 1 : value - 1);
}

/// Returns a random string of the document, or "a".
std::string other_text(json& document, Random& random) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    const json& value = pick(document, random);
    if (value.is_string()) return value.get<std::string>();
    if (value.is_object() && !value.empty()) {
      return std::next(value.begin(), static_cast<int>(random() % value.size())).key();
    }
  }
  return "a";
}

void mutate_array(json& array, json copy, Random& random) {
  if (array.empty() || random() % 4 == 0) {
    array.push_back(std::move(copy));
    return;
  }
  const size_t at = random() % array.size();
  switch (random() % 3) {
    case 0: array.erase(at); break;
    case 1: array.push_back(json(array[at])); break;
    default: std::swap(array[at], array[random() % array.size()]);
  }
}

void mutate_object(json& object, const std::string& name, json copy, Random& random) {
  if (object.empty() || random() % 3 == 0) {
    object[name] = std::move(copy);
    return;
  }
  const auto member = std::next(object.begin(), static_cast<int>(random() % object.size()));
  const std::string key = member.key();
  if (random() % 2 == 0) {
    object.erase(key);
  } else {
    json value = *member;
    object[mutate_text(key, name, random)] = std::move(value);
  }
}

}  // namespace

std::vector<json*> values_of(json& document) {
  std::vector<json*> values = {&document};
  for (size_t i = 0; i < values.size() && values.size() < 4096; ++i) {
    if (!values[i]->is_structured()) continue;
    for (json& inner : *values[i]) values.push_back(&inner);
  }
  return values;
}

json& pick(json& document, Random& random) {
  const std::vector<json*> values = values_of(document);
  return *values[random() % values.size()];
}

std::string mutate_text(const std::string& text, const std::string& other, Random& random) {
  std::string out;
  switch (random() % 5) {
    case 0: {
      for (size_t times = 2u << random() % 9; times > 0; --times) out += text;
      break;
    }
    case 1: out = text + other; break;
    case 2: out = other; break;
    case 3: out = text.substr(0, text.size() / 2); break;
    default: {
      out = text.empty() ? "a" : text;
      out[random() % out.size()] = static_cast<char>(random() % 128);
    }
  }
  return out.substr(0, kMaxText);
}

void mutate_value(json& document, Random& random) {
  json& value = pick(document, random);
  json copy = pick(document, random);
  if (random() % 8 == 0) {
    value = std::move(copy);
  } else if (value.is_array()) {
    mutate_array(value, std::move(copy), random);
  } else if (value.is_object()) {
    mutate_object(value, other_text(document, random), std::move(copy), random);
  } else if (value.is_string()) {
    value = mutate_text(value.get<std::string>(), other_text(document, random), random);
  } else if (value.is_boolean()) {
    value = !value.get<bool>();
  } else {
    value = new_number(value, random);
  }
}

size_t mutate_document(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                       void (*mutate)(json& document, Random& random)) {
  Random random(seed);
  json document = json::parse(data, data + size, nullptr, false);
  if (document.is_discarded() || random() % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  for (size_t times = 1 + random() % 3; times > 0; --times) mutate(document, random);
  const std::string text = document.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace diffattn::fuzz
