// SPDX-License-Identifier: Apache-2.0
#include "infer/prefill.h"

#include <algorithm>

#include "nn/models/prompts.h"

namespace diffattn::infer {
namespace {

using torch::Tensor;

/// Tokens of padded prompts that the model computes at once.
constexpr int64_t kTokensAtOnce = 32768;

struct Prefill {
  nn::CausalLMImpl& model;
  const StepModel& step;
  PagedCache& cache;

  /// Computes prompts from their beginning, padded on the left to the longest.
  void compute(const std::vector<const PrefillRow*>& rows) {
    std::vector<std::vector<int64_t>> heads;
    std::vector<std::vector<int32_t>> pages;
    std::vector<int64_t> tokens;
    for (const PrefillRow* row : rows) {
      heads.emplace_back(row->prompt->begin(), row->prompt->begin() + row->end);
      pages.push_back(row->pages);
      tokens.push_back(row->end);
    }
    const nn::PaddedPrompts padded = nn::pad_left(heads, model.head_weight().device());
    nn::KvCaches caches(model.model->layers.size());
    nn::DecoderInput input;
    input.ids = padded.ids;
    input.caches = &caches;
    if (heads.size() > 1) {
      input.positions = padded.positions;
      input.mask.key_starts(padded.starts);
    }
    model.forward(input);
    const Tensor columns = torch::arange(padded.ids.size(1), padded.ids.options());
    const Tensor real = (columns.unsqueeze(0) >= padded.starts.unsqueeze(1)).flatten();
    store(caches, real.nonzero().squeeze(1), cache.places(pages, tokens));
  }

  /// Computes the tokens behind those that the row's pages have already.
  void continue_row(const PrefillRow& row) {
    nn::KvCaches caches(model.model->layers.size());
    const PagedCache::Places before = cache.places({row.pages}, {row.cached});
    for (size_t layer = 0; layer < caches.size(); ++layer) {
      const auto [k, v] = cache.read(static_cast<int64_t>(layer), before);
      caches[layer].append(0, step.module_keys(k).unsqueeze(0));
      caches[layer].append(1, v.unsqueeze(0));
    }
    const std::vector<int64_t> rest(row.prompt->begin() + row.cached,
                                    row.prompt->begin() + row.end);
    nn::DecoderInput input;
    input.ids = torch::tensor(rest, torch::kLong).unsqueeze(0).to(model.head_weight().device());
    input.caches = &caches;
    model.forward(input);
    PagedCache::Places places = cache.places({row.pages}, {row.end});
    places = {places.page.slice(0, row.cached), places.offset.slice(0, row.cached)};
    store(caches, torch::arange(row.cached, row.end, input.ids.options()), places);
  }

 private:
  /// Copies rows `kept` of the caches, all batch entries after each other, to the pages.
  void store(nn::KvCaches& caches, const Tensor& kept, const PagedCache::Places& places) {
    for (size_t layer = 0; layer < caches.size(); ++layer) {
      const auto rows = [&](size_t slot) {
        return caches[layer].filled(slot).flatten(0, 1).index_select(0, kept);
      };
      cache.write(static_cast<int64_t>(layer), places, step.cached_keys(rows(0)), rows(1));
      caches[layer].clear();
    }
  }
};

}  // namespace

void prefill(nn::CausalLMImpl& model, const StepModel& step, PagedCache& cache,
             const std::vector<PrefillRow>& rows) {
  Prefill work{model, step, cache};
  std::vector<const PrefillRow*> fresh;
  int64_t longest = 1;
  for (const PrefillRow& row : rows) {
    if (row.cached > 0 && row.cached < row.end) work.continue_row(row);
    if (row.cached > 0 || row.end == 0) continue;
    fresh.push_back(&row);
    longest = std::max(longest, row.end);
  }
  const auto at_once = static_cast<size_t>(std::max<int64_t>(1, kTokensAtOnce / longest));
  for (size_t begin = 0; begin < fresh.size(); begin += at_once) {
    const size_t end = std::min(fresh.size(), begin + at_once);
    work.compute({fresh.begin() + static_cast<ptrdiff_t>(begin),
                  fresh.begin() + static_cast<ptrdiff_t>(end)});
  }
}

}  // namespace diffattn::infer
