// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/step_profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/diffattn/terminal/print.h"

namespace diffattn::app {
namespace {

using Event = torch::autograd::profiler::KinetoEvent;

/// The host is ahead of a GPU only after the first update of a row, so a profile has several.
constexpr int64_t kUpdatesOnGpu = 4;

struct NamedTime {
  double ms = 0;
  int64_t calls = 0;
};
using Times = std::map<std::string, NamedTime>;

std::vector<const Event*> events_of(const torch::autograd::profiler::ProfilerResult& result,
                                    bool on_gpu) {
  std::vector<const Event*> events;
  for (const Event& event : result.events()) {
    const bool of_gpu = event.deviceType() == c10::DeviceType::CUDA;
    if (of_gpu == on_gpu) events.push_back(&event);
  }
  return events;
}

double ms_of(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

/// Sums up operators by name, without the operators that they call.
Times host_times(std::vector<const Event*> events) {
  struct Open {
    uint64_t end;
    std::string name;
  };
  std::ranges::stable_sort(events, {}, [](const Event* event) {
    return std::pair(event->startThreadId(), event->startNs());
  });
  Times times;
  std::vector<Open> open;
  uint64_t thread = 0;
  for (const Event* event : events) {
    const double ms = ms_of(event->durationNs());
    times[event->name()].ms += ms;
    times[event->name()].calls += 1;
    if (event->startThreadId() != thread) open.clear();
    thread = event->startThreadId();
    while (!open.empty() && open.back().end <= event->startNs()) open.pop_back();
    if (!open.empty()) times[open.back().name].ms -= ms;
    open.push_back({event->startNs() + event->durationNs(), event->name()});
  }
  return times;
}

struct GpuTimes {
  Times kernels, idle;  // idle: the time before a kernel in which no other ran
  double busy_ms = 0, idle_ms = 0;
};

GpuTimes gpu_times(std::vector<const Event*> events) {
  std::ranges::stable_sort(events, {}, [](const Event* event) { return event->startNs(); });
  GpuTimes times;
  uint64_t end = events.empty() ? 0 : events.front()->startNs();
  for (const Event* event : events) {
    const std::string name = event->name();
    const uint64_t start = event->startNs(), stop = start + event->durationNs();
    times.kernels[name].ms += ms_of(event->durationNs());
    times.kernels[name].calls += 1;
    if (start > end) {
      times.idle[name].ms += ms_of(start - end);
      times.idle[name].calls += 1;
      times.idle_ms += ms_of(start - end);
    }
    if (stop > end) times.busy_ms += ms_of(stop - std::max(start, end));
    end = std::max(end, stop);
  }
  return times;
}

/// Returns the longest entries, per update.
Json longest(const Times& times, size_t count, int64_t updates) {
  std::vector<std::pair<std::string, NamedTime>> sorted(times.begin(), times.end());
  std::ranges::sort(sorted, std::greater{}, [](const auto& entry) { return entry.second.ms; });
  Json rows = Json::array();
  for (size_t i = 0; i < std::min(sorted.size(), count); ++i) {
    const auto& [name, time] = sorted[i];
    rows.push_back({{"name", name},
                    {"ms", time.ms / static_cast<double>(updates)},
                    {"calls", (time.calls + updates - 1) / updates}});
  }
  return rows;
}

void print_entries(const Json& entries) {
  for (const Json& entry : entries) {
    print_out("    {:>9.2f} ms {:>6} x  {:.53}\n", entry["ms"].get<double>(),
              entry["calls"].get<int64_t>(), entry["name"].get<std::string>());
  }
}

}  // namespace

Json profile_steps(train::Trainer& trainer, train::BatchSource& source, bool on_gpu) {
  namespace profiler = torch::autograd::profiler;
  namespace impl = torch::profiler::impl;
  const int64_t updates = on_gpu ? kUpdatesOnGpu : 1;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  std::set<impl::ActivityType> activities{on_gpu ? impl::ActivityType::CUDA
                                                 : impl::ActivityType::CPU};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  for (int64_t i = 0; i < updates; ++i) {
    trainer.begin(source);
    if (i > 0) trainer.finish();
  }
  trainer.finish();
  if (on_gpu) torch::cuda::synchronize();
  const auto result = profiler::disableProfiler();
  if (!on_gpu) return {{"entries", longest(host_times(events_of(*result, false)), 30, updates)}};
  const GpuTimes times = gpu_times(events_of(*result, true));
  return {{"entries", longest(times.kernels, 40, updates)},
          {"busy_ms", times.busy_ms / static_cast<double>(updates)},
          {"idle_ms", times.idle_ms / static_cast<double>(updates)},
          {"idle", longest(times.idle, 10, updates)}};
}

void print_step_profile(const Json& profile) {
  print_entries(profile["entries"]);
  if (!profile.contains("busy_ms")) return;
  print_out("  the GPU was busy for {:.2f} ms and idle for {:.2f} ms, longest before:\n",
            profile["busy_ms"].get<double>(), profile["idle_ms"].get<double>());
  print_entries(profile["idle"]);
}

}  // namespace diffattn::app
