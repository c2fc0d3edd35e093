// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/run.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "diffattn/data/random.h"
#include "diffattn/error.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "diffattn/io/safetensors.h"
#include "diffattn/models/model_folder.h"
#include "io/manifest.h"
#include "io/safetensors/sharded.h"
#include "models/tensor_file.h"
#include "train/checkpoint_folder.h"
#include "train/checkpoints.h"
#include "train/lambda_values.h"
#include "train/metrics_log.h"
#include "train/optimizer_parts.h"
#include "train/run_lock.h"

namespace diffattn::train {
namespace {

namespace fs = std::filesystem;

constexpr char kRunFile[] = "/config.toml";
constexpr char kStateFile[] = "/state.json";
constexpr char kOptimizerFile[] = "/optimizer.safetensors";
constexpr char kRandomFile[] = "/random.safetensors";

models::NamedTensors random_state(torch::Device device) {
  models::NamedTensors state{
      {"cpu", at::globalContext().defaultGenerator(torch::kCPU).get_state()}};
  if (!device.is_cpu()) {
    state.emplace_back("device", at::globalContext().defaultGenerator(device).get_state());
  }
  return state;
}

void restore_random_state(const std::string& path, torch::Device device) {
  const auto file = io::SafetensorsReader::open(path);
  at::Generator host = at::globalContext().defaultGenerator(torch::kCPU);
  host.set_state(models::read_tensor(file, "cpu"));
  if (device.is_cpu()) return;
  at::Generator on_device = at::globalContext().defaultGenerator(device);
  on_device.set_state(models::read_tensor(file, "device"));
}

/// Seeds torch's generators, so that every rank draws its own numbers, such as dropout masks.
void seed_rank(int64_t seed, int64_t rank, int64_t step) {
  torch::manual_seed(data::random_at(static_cast<uint64_t>(seed), static_cast<uint64_t>(rank),
                                     static_cast<uint64_t>(step)));
}

/// `parts`: processes that each have a part of the optimiser's state.
std::string state_text(const TrainingState& state, const RunConfig::Train& t,
                       const std::string& position, int64_t parts) {
  nlohmann::json json{{"step", state.step},         {"tokens", state.tokens},
                      {"skipped", state.skipped},   {"skipped_in_row", state.skipped_in_row},
                      {"batch_size", t.batch_size}, {"accumulate", t.accumulate},
                      {"data_position", position}};
  if (parts > 1) json["optimizer_parts"] = parts;
  if (std::isfinite(state.best_valid_loss)) json["best_valid_loss"] = state.best_valid_loss;
  return json.dump(2) + "\n";
}

TrainingState state_from(const io::JsonValue& saved) {
  TrainingState state;
  state.step = saved.at("step").to_int(0);
  state.tokens = saved.at("tokens").to_int(0);
  state.skipped = saved.at("skipped").to_int(0);
  state.skipped_in_row = saved.at("skipped_in_row").to_int(0);
  if (const auto best = saved.find("best_valid_loss")) state.best_valid_loss = best->to_double();
  return state;
}

/// Throws ConfigError if an update has another number of rows than before. batch_size and
/// accumulate may change together: that is how a run gets by with less memory. Checkpoints of
/// version 0.1.0 do not hold these numbers.
void check_batch_size(const io::JsonValue& saved, const RunConfig::Train& t) {
  const auto batch_size = saved.find("batch_size"), accumulate = saved.find("accumulate");
  if (!batch_size || !accumulate) return;
  const int64_t was = batch_size->to_int(1, 1 << 20) * accumulate->to_int(1, 1 << 20);
  const int64_t is = t.batch_size * t.accumulate;
  if (was == is) return;
  throw ConfigError(
      fmt::format("train.batch_size: expected train.batch_size * train.accumulate = {} rows for "
                  "each update, as "
                  "in the checkpoint, got {} * {} = {}; --change-batch-size allows it",
                  was, t.batch_size, t.accumulate, is));
}

/// Returns the peak memory in MiB: torch's allocations on a GPU, else the resident memory of the
/// process.
double peak_memory(torch::Device device) {
  if (!device.is_cpu()) {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats =
        c10::getDeviceAllocator(device.type())->getDeviceStats(std::max<int>(0, device.index()));
    return static_cast<double>(stats.allocated_bytes[kAll].peak) / (1 << 20);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

}  // namespace

std::string read_run_file(const std::string& folder) {
  return io::read_text(folder + kRunFile, uint64_t{1} << 20);
}

Run::Run(const std::string& folder, const RunConfig& config, nn::CausalLM model,
         std::vector<std::pair<std::string, std::string>> extra_files)
    : Run(folder, config, language_model(std::move(model)), std::move(extra_files)) {}

Run::Run(const std::string& folder, const RunConfig& config, std::shared_ptr<TaskModel> model,
         std::vector<std::pair<std::string, std::string>> extra_files,
         std::shared_ptr<parallel::Collective> world)
    : world_(std::move(world)),
      folder_(folder),
      lock_(is_first() ? std::make_unique<RunLock>(folder) : nullptr),
      config_(config),
      checkpoints_(is_first() ? std::make_unique<Checkpoints>(folder, config.train.keep_checkpoints)
                              : nullptr),
      trainer_(std::move(model), config, world_),
      extra_files_(std::move(extra_files)) {
  // All ranks made the model from one seed.
  if (!is_first()) seed_rank(config_.seed, world_->rank(), 0);
  if (is_first()) remove_unfinished(folder);
}

Run::~Run() = default;

void Run::check_lock() const {
  if (lock_) lock_->check();
}

/// Runs `work` on all ranks. If it throws on one of them, this throws on all.
void Run::together(const std::function<void()>& work) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const bool failed = parallel::any_rank(*world_, error != nullptr);
  if (error) std::rethrow_exception(error);
  if (failed) throw Error("train: another process could not write its part of the checkpoint");
}

void Run::write_part(const std::string& checkpoint, const BatchSource& train) {
  const std::string part = rank_folder(checkpoint, world_->rank());
  make_folder(part);
  const auto optimizer = trainer_.optimizer_part();
  if (is_first() || trainer_.has_parts()) {
    models::write_tensor_file(part + kOptimizerFile, optimizer);
  }
  models::write_tensor_file(part + kRandomFile, random_state(torch::Device(config_.train.device)));
  if (!is_first()) return;
  io::write_text(part + kStateFile, state_text(trainer_.state, config_.train, train.position(),
                                               trainer_.has_parts() ? world_->size() : 1));
}

/// Writes the parts of all ranks and returns their part_checksums(). Each rank computes its own, so
/// that rank 0 need not read all parts while the others wait.
std::vector<std::string> Run::write_parts(const std::string& checkpoint, const BatchSource& train) {
  std::string checksums;
  together([&] {
    write_part(checkpoint, train);
    if (world_->size() > 1) checksums = part_checksums(checkpoint, world_->rank());
  });
  if (world_->size() == 1) return {};
  return parallel::all_gather_texts(*world_, checksums);
}

void Run::save(const BatchSource& train) {
  check_lock();
  const Trainer::WholeWeights weights(trainer_);
  const int64_t step = trainer_.state.step;
  if (!is_first()) {
    together([] {});  // rank 0 makes the folder
    write_parts(unfinished_checkpoint(folder_, step), train);
    return;
  }
  bool made = false;
  std::vector<io::Manifest::Entry> known;
  try {
    checkpoints_->save(
        step, world_->size(),
        [&](const std::string& folder) {
          made = true;
          together([&] {
            trainer_.task_model().save(folder);
            for (const auto& [name, text] : extra_files_) io::write_text(folder + "/" + name, text);
          });
          known = known_files(write_parts(folder, train));
        },
        known);
  } catch (...) {
    if (!made) parallel::any_rank(*world_, true);  // the others wait for the folder
    throw;
  }
}

bool Run::has_checkpoint() const { return checkpoints_ && checkpoints_->any(); }

std::optional<std::string> Run::intact_checkpoint() const {
  if (!checkpoints_) return std::nullopt;
  const auto step = checkpoints_->intact_before(std::numeric_limits<int64_t>::max());
  if (!step) return std::nullopt;
  return checkpoints_->folder_of(*step);
}

void Run::check_checkpoint(int64_t step) const {
  const std::string folder = checkpoints_->folder_of(step);
  if (checkpoint_state(folder) == CheckpointState::kWithoutChecksums) return;
  try {
    train::check_checkpoint(folder);
  } catch (const io::Error& error) {
    const auto before = checkpoints_->intact_before(step);
    throw io::Error(error.file(), error.message() + "; this checkpoint is damaged" +
                                      (before ? ", continue from an intact one with --from " +
                                                    checkpoint_name(*before)
                                              : " and no earlier one is intact"));
  }
}

/// Returns the step of the checkpoint to continue from, -1 if there is none. Rank 0 chooses.
int64_t Run::chosen_checkpoint(const ResumeOptions& options) {
  const torch::Tensor step = torch::full({1}, -1, torch::kLong);
  if (is_first()) {
    const auto choice = options.from ? checkpoints_->choose(*options.from) : checkpoints_->choose();
    for (const std::string& name : choice.unusable) {
      TORCH_WARN(folder_, "/checkpoints/", name, ": never became complete and is not used");
    }
    if (choice.step) check_checkpoint(*choice.step);
    step.fill_(choice.step.value_or(-1));
  }
  world_->broadcast(step, 0).wait();
  return step.item<int64_t>();
}

bool Run::resume(BatchSource& train, const ResumeOptions& options) {
  const int64_t step = chosen_checkpoint(options);
  if (step < 0) return false;
  load(folder_ + "/checkpoints/" + checkpoint_name(step), train, options);
  return true;
}

void Run::load(const std::string& checkpoint, BatchSource& train, const ResumeOptions& options) {
  const bool has_parts = checkpoint_state(checkpoint) == CheckpointState::kComplete;
  const std::string part = has_parts ? rank_folder(checkpoint, 0) : checkpoint;
  const auto json = io::read_json(part + kStateFile);
  const io::JsonValue saved(json, part + kStateFile);
  if (!options.change_batch_size) check_batch_size(saved, config_.train);
  train.seek(saved.at("data_position").to_string());
  {
    Trainer::WholeWeights weights(trainer_, /*everywhere=*/true);
    models::read_tensors_into(io::ShardedReader::open(checkpoint),
                              models::named_weights(*trainer_.model()));
    weights.take();
  }
  load_optimizer(checkpoint, part, saved);
  trainer_.state = state_from(saved);
  const std::string own = is_first() ? part : rank_folder(checkpoint, world_->rank());
  if (fs::exists(own)) {
    restore_random_state(own + kRandomFile, torch::Device(config_.train.device));
  } else {
    seed_rank(config_.seed, world_->rank(), trainer_.state.step);
  }
}

/// Reads the optimiser's state; `part` is the folder of rank 0.
void Run::load_optimizer(const std::string& checkpoint, const std::string& part,
                         const io::JsonValue& saved) {
  const auto parts = saved.find("optimizer_parts");
  if (!parts && !trainer_.has_parts()) {
    models::read_tensors_into(io::SafetensorsReader::open(part + kOptimizerFile),
                              trainer_.optimizer().state());
    return;
  }
  std::vector<std::string> paths{part + kOptimizerFile};
  for (int64_t rank = 1; parts && rank < parts->to_int(1, io::kMaxRanks); ++rank) {
    paths.push_back(rank_folder(checkpoint, rank) + kOptimizerFile);
  }
  const OptimizerParts files(paths);
  trainer_.set_optimizer_state(
      [&](const std::string& name, int64_t count) { return files.read(name, count); });
}

void Run::save_model() {
  const Trainer::WholeWeights weights(trainer_);
  if (!is_first()) return;
  check_lock();
  const std::string temporary = folder_ + "/" + kUnfinished + "model";
  fs::remove_all(temporary);
  make_folder(temporary);
  trainer_.task_model().save(temporary);
  for (const auto& [name, text] : extra_files_) io::write_text(temporary + "/" + name, text);
  sync_folder(temporary);
  replace_folder(temporary, model_folder());
}

// log_statistics() and evaluate() reset the source afterwards: every evaluation sees the same
// batches, and statistics take no batch away from the training.
void Run::log_statistics(BatchSource& source) {
  const Trainer::WholeWeights weights(trainer_);
  if (!is_first()) return;
  const std::string here = source.position();
  const Batch batch = source.next();
  source.seek(here);
  metrics_->write(trainer_.state.step,
                  attention_statistics(trainer_.task_model(), batch, config_.train.dtype));
}

void Run::evaluate(BatchSource& valid, const RunEvents& events) {
  const std::string here = valid.position();
  trainer_.model()->eval();
  Evaluation result;
  for (int64_t i = 0; i < config_.train.eval_batches; ++i) {
    result += trainer_.evaluate(valid.next());
  }
  valid.seek(here);
  if (world_->size() > 1) {
    const auto tokens = static_cast<double>(result.tokens),
               right = static_cast<double>(result.right);
    const torch::Tensor sums = torch::tensor({result.loss_sum, right, tokens}, torch::kFloat64);
    world_->all_reduce(sums).wait();
    result.loss_sum = sums[0].item<double>();
    result.right = static_cast<int64_t>(sums[1].item<double>());
    result.tokens = static_cast<int64_t>(sums[2].item<double>());
  }
  TrainingState& state = trainer_.state;
  // A saved model always uses the full lambda, so it would differ from a model in its lambda
  // warm-up.
  const bool full_lambda = state.step > config_.train.lambda_warmup_steps;
  const bool best = full_lambda && result.loss() < state.best_valid_loss;
  if (best) {
    state.best_valid_loss = result.loss();
    save_model();
  }
  Values values{{"valid_loss", result.loss()}, {"valid_accuracy", result.accuracy()}};
  if (config_.task != Task::kClassify) {
    values.insert(values.begin() + 1, {"valid_perplexity", result.perplexity()});
  }
  for (const auto& value : lambda_values(*trainer_.model())) values.push_back(value);
  if (metrics_) metrics_->write(state.step, values);
  // Rank 0 continues the prompts with the model.
  std::optional<Trainer::WholeWeights> weights;
  if (!config_.train.sample_prompts.empty()) weights.emplace(trainer_);
  if (events.on_evaluation) events.on_evaluation(state.step, result, best);
}

void Run::log(const StepReport& report) {
  if (!is_first()) return;
  check_lock();
  metrics_->write(report.step,
                  {{"loss", report.loss},
                   {"gradient_norm", report.gradient_norm},
                   {"learning_rate", report.learning_rate},
                   {"tokens", static_cast<double>(trainer_.state.tokens)},
                   {"tokens_per_second", static_cast<double>(report.model_tokens) / report.seconds},
                   {"model_flop_utilisation", report.utilisation},
                   {"skipped", static_cast<double>(trainer_.state.skipped)},
                   {"memory_mib", peak_memory(torch::Device(config_.train.device))}});
}

Outcome Run::go(BatchSource& train, BatchSource* valid, const RunEvents& events) try {
  const RunConfig::Train& t = config_.train;
  if (is_first()) {
    io::write_text(folder_ + kRunFile, config_.to_toml());
    metrics_ = std::make_unique<MetricsLog>(folder_, trainer_.state.step);
  }
  const auto due = [&](int64_t every) {
    return every > 0 && (trainer_.state.step % every == 0 || trainer_.state.step == t.steps);
  };
  // Reports updates until `late` are left. Returns false if too many were skipped in a row.
  const auto report_until = [&](int64_t late) {
    while (trainer_.pending() > late) {
      const StepReport report = trainer_.finish();
      if (due(t.log_every) || report.skipped) log(report);
      if (events.on_step) events.on_step(report, trainer_.state);
      if (trainer_.state.skipped_in_row >= t.max_skipped_steps) return false;
    }
    return true;
  };
  // A GPU computes one update while the host prepares the next: reports then come an update late.
  // Whatever reads or saves parameters comes after all reports.
  const bool overlaps = !torch::Device(t.device).is_cpu();
  const auto has_events = [&](int64_t step) {
    const auto at = [&](int64_t every) { return every > 0 && step % every == 0; };
    return step == t.steps || at(t.stats_every) || at(t.checkpoint_every) ||
           (valid && at(t.eval_every));
  };
  while (trainer_.state.step < t.steps) {
    trainer_.begin(train);
    const bool settled = !overlaps || has_events(trainer_.state.step + trainer_.pending());
    if (!report_until(settled ? 0 : 1)) return Outcome::kNonFinite;
    if (settled && valid && due(t.eval_every)) evaluate(*valid, events);
    if (settled && due(t.stats_every)) log_statistics(valid ? *valid : train);
    const bool stop = parallel::any_rank(*world_, events.stop && events.stop());
    if (stop && !report_until(0)) return Outcome::kNonFinite;
    if (stop || (settled && due(t.checkpoint_every))) {
      save(train);
      if (events.on_checkpoint && is_first()) {
        events.on_checkpoint(checkpoints_->folder_of(trainer_.state.step));
      }
    }
    if (stop) return Outcome::kStopped;
  }
  if (!valid || t.eval_every == 0) save_model();
  check_lock();
  return Outcome::kDone;
} catch (const io::Error&) {
  check_lock();  // a removed folder is the better explanation of a write that failed
  throw;
}

}  // namespace diffattn::train
