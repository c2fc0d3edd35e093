// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/trainer.h"

#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "diffattn/error.h"
#include "diffattn/nn/cross_entropy.h"
#include "nn/models/attention_penalty.h"
#include "train/context_parallel.h"
#include "train/data_parallel.h"
#include "train/flops.h"
#include "train/mixed_precision.h"
#include "train/schedule.h"
#include "train/working_copy.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

Schedule schedule_of(const RunConfig::Train& t) {
  return {.peak = t.learning_rate,
          .final_fraction = t.final_fraction,
          .warmup_steps = t.warmup_steps,
          .steps = t.steps,
          .decay = decay_from_name(t.schedule)};
}

KeepAttention keep_from_name(const std::string& name) {
  if (name == "results") return KeepAttention::kResults;
  return name == "sums" ? KeepAttention::kSums : KeepAttention::kNothing;
}

std::shared_ptr<TaskModel> on_device(std::shared_ptr<TaskModel> model, torch::Device device,
                                     const RunConfig::Train& t) {
  model->module()->to(device);
  model->module()->train();
  model->checkpoint_activations(t.activation_checkpointing, keep_from_name(t.keep_attention));
  return model;
}

/// On a GPU, mixed precision uses copies of the matrices. On the CPU, casts cost little beside the
/// products, and the residual stream stays in float32. Weights that come and go have no copies.
std::unique_ptr<WorkingCopy> working_copy(const TaskModel& model, const RunConfig::Train& t) {
  if (t.dtype != "bfloat16" || !model.device().is_cuda() || t.shard == "parameters") return nullptr;
  return std::make_unique<WorkingCopy>(*model.module());
}

std::unique_ptr<DataParallel> data_parallel(std::shared_ptr<parallel::Collective> world,
                                            const TaskModel& model, const RunConfig::Train& t) {
  if (!world->is_group()) return nullptr;
  const std::string shard = world->size() == 1 ? "none" : t.shard;
  return std::make_unique<DataParallel>(std::move(world), *model.module(), shard);
}

std::unique_ptr<ContextParallel> context_parallel(
    const std::shared_ptr<parallel::Collective>& world, const TaskModel& model,
    const RunConfig::Train& t) {
  const bool alone = t.groups_of(world->size()) == world->size();
  if (alone) return nullptr;
  // An exchange of tokens need not wait for sums of gradients.
  return std::make_unique<ContextParallel>(world->second(), t.context_parallel, *model.module());
}

AdamW optimizer_of(DataParallel* processes, const TaskModel& model, const RunConfig::Train& t,
                   const WorkingCopy* copies) {
  const AdamWOptions options{t.beta1, t.beta2, t.eps, t.weight_decay};
  if (processes == nullptr || !processes->is_sharded()) {
    return AdamW(*model.module(), options, copies);
  }
  return AdamW(processes->optimized(), options, nullptr,
               [processes](Tensor& squares) { processes->world().all_reduce(squares).wait(); });
}

}  // namespace

/// A micro-batch of this process, and its part of the update's micro-batches of all processes.
struct Trainer::Share {
  Batch batch;
  double divisor = 1.0;  // of the cross-entropy: the update's TaskModel::loss_weight / this one's
  double labels = 1.0;   // share of the labels that count
  double text = 1.0;     // share of the tokens of `ids` that are not padding
};

/// An update on its way: its loss, label count and gradient norm arrive in `numbers`.
struct Trainer::Pending {
  StepReport report = {};
  Tensor numbers = {};                     // [3] float64 in host memory
  std::optional<c10::Event> arrived = {};  // none: the numbers are there
  std::chrono::steady_clock::time_point start = {};
};

Trainer::Trainer(nn::CausalLM model, const RunConfig& config)
    : Trainer(language_model(std::move(model)), config) {}

Trainer::Trainer(std::shared_ptr<TaskModel> model, const RunConfig& config,
                 std::shared_ptr<parallel::Collective> world)
    : config_(config),
      device_(config.train.device),
      model_(on_device(std::move(model), device_, config.train)),
      world_(std::move(world)),
      parallel_(data_parallel(world_, *model_, config.train)),
      context_(context_parallel(world_, *model_, config.train)),
      working_(working_copy(*model_, config.train)),
      optimizer_(optimizer_of(parallel_.get(), *model_, config.train, working_.get())),
      schedule_(std::make_unique<Schedule>(schedule_of(config.train))),
      flops_(std::make_unique<FlopCounter>(*model_->module(), model_->config())),
      peak_flops_(config.train.peak_tflops > 0.0 ? config.train.peak_tflops * 1e12
                                                 : product_speed(device_, config.train.dtype)) {
  peak_flops_ *= static_cast<double>(world_->size());
}

Trainer::~Trainer() = default;

Trainer::Loss Trainer::loss_of(const Share& share) {
  const RunConfig::Train& t = config_.train;
  const Batch batch = own_tokens(share.batch).to(device_);
  const MixedPrecision region(device_, t.dtype);
  const nn::SharedRows::Scope rows(context_.get());
  const bool penalized = t.sparsity_weight != 0.0 || t.focus_weight != 0.0;
  std::vector<nn::AttentionTrace> traces;
  // The z-loss is a mean over labels, also if their cross-entropy has class weights.
  const double z_loss = share.labels > 0 ? t.z_loss * (share.labels * share.divisor) : 0.0;
  const nn::TokenLoss loss = model_->loss(
      batch, nn::CrossEntropyOptions().label_smoothing(t.label_smoothing).z_loss(z_loss),
      penalized && torch::GradMode::is_enabled() ? &traces : nullptr);
  Tensor value = loss.mean / share.divisor;
  if (!traces.empty()) {
    const nn::AttentionPenalty penalty =
        nn::attention_penalty(traces, traced_row_lengths(*model_, batch, traces.size()),
                              traced_row_shares(share, traces.size()));
    value = value + t.sparsity_weight * penalty.sparsity + t.focus_weight * penalty.focus;
  }
  return {value, loss.count};
}

/// The rows of an encoder's maps, or of those of the only stack, are the tokens of `ids`. All other
/// rows are targets, one per label.
std::vector<double> Trainer::traced_row_shares(const Share& share, size_t layers) const {
  std::vector<double> shares(layers, share.text);
  if (!share.batch.target_ids.defined()) return shares;
  const auto encoder = static_cast<size_t>(model_->config().num_encoder_layers);
  std::fill(shares.begin() + static_cast<std::ptrdiff_t>(std::min(encoder, layers)), shares.end(),
            share.labels);
  return shares;
}

// Lambda is 0 in the first update and has its full value after the last update of the warm-up.
void Trainer::warm_up_lambda(int64_t step) {
  const int64_t steps = config_.train.lambda_warmup_steps;
  if (steps == 0 || step > steps) return;
  nn::scale_lambda(*model_->module(), static_cast<double>(step) / static_cast<double>(steps));
}

/// Returns the tokens of the rows that this process computes.
Batch Trainer::own_tokens(const Batch& batch) { return context_ ? context_->part(batch) : batch; }

Evaluation Trainer::evaluate(const Batch& batch) {
  const nn::SharedRows::Scope rows(context_.get());
  return train::evaluate(*model_, own_tokens(batch), config_.train.dtype);
}

/// Reads this process's parts of the micro-batches of an update.
std::vector<Trainer::Share> Trainer::next_shares(BatchSource& source, StepReport& report) {
  const int64_t count = config_.train.accumulate;
  const int64_t processes = config_.train.groups_of(world_->size());  // with other rows
  std::vector<Share> shares;
  for (int64_t micro = 0; micro < count; ++micro) {
    const Batch& batch = shares.emplace_back(Share{source.next()}).batch;
    report.flops += flops_->training(batch) * static_cast<double>(processes);
    report.model_tokens += batch.ids.numel() * processes;
    if (batch.target_ids.defined()) report.model_tokens += batch.target_ids.numel() * processes;
  }
  if (count > 1 || world_->size() > 1) weigh(shares);
  return shares;
}

/// Sets the shares that these micro-batches have of the update.
void Trainer::weigh(std::vector<Share>& shares) {
  Tensor sums = torch::zeros({3}, torch::kFloat64);  // weights, labels, tokens that are text
  std::vector<Tensor> own;                           // of the tokens of this process
  for (const Share& share : shares) {
    const Batch batch = own_tokens(share.batch);
    own.push_back(
        torch::tensor({model_->loss_weight(batch), static_cast<double>(batch.label_count()),
                       static_cast<double>(batch.text_rows())},
                      torch::kFloat64));
    sums += own.back();
  }
  world_->all_reduce(sums).wait();
  const auto all = [&](int64_t i) { return sums[i].item<double>(); };
  for (size_t micro = 0; micro < shares.size(); ++micro) {
    const auto mine = [&](int64_t i) { return own[micro][i].item<double>(); };
    if (all(2) > 0) shares[micro].text = mine(2) / all(2);
    if (all(1) == 0) continue;  // every loss is 0
    // Micro-batches with as many labels each give exactly their number.
    shares[micro].divisor = all(0) / mine(0);
    shares[micro].labels = mine(1) / all(1);
  }
}

/// Runs the micro-batches of an update. Returns the sums of their losses and label counts, [2].
Tensor Trainer::accumulate_gradients(BatchSource& source, StepReport& report) {
  const bool several = config_.train.accumulate > 1;
  std::optional<WorkingCopy::InUse> copies;
  if (working_) copies.emplace(*working_);
  // Sums of gradients start during the last backward, unless some gradients come in pieces.
  const bool overlaps = parallel_ && !(working_ && several);
  const bool every_time = parallel_ && parallel_->sums_every_backward();
  Tensor sums = torch::zeros({2}, torch::TensorOptions().device(device_).dtype(torch::kFloat64));
  const std::vector<Share> shares = next_shares(source, report);
  for (const Share& share : shares) {
    const Loss loss = loss_of(share);
    const bool last = &share == &shares.back();
    if (every_time || (overlaps && last)) parallel_->begin_backward();
    loss.value.backward();
    if (every_time) parallel_->finish_backward();
    sums += torch::stack({loss.value.detach().to(torch::kFloat64), loss.count.to(torch::kFloat64)});
    if (working_ && several) working_->collect_gradients();
  }
  if (working_) working_->deliver_gradients();
  if (parallel_ && !every_time) parallel_->finish_backward();
  if (parallel_) world_->all_reduce(sums).wait();
  return sums;
}

void Trainer::begin(BatchSource& source) {
  const int64_t step = state.step + pending();
  Pending update{.start = std::chrono::steady_clock::now()};
  update.report.step = step + 1;
  update.report.learning_rate = schedule_->at(step);
  model_->module()->train();
  optimizer_.zero_grad();
  warm_up_lambda(step);
  const Tensor sums = accumulate_gradients(source, update.report);
  const Tensor norm =
      optimizer_.update(sums[0], update.report.learning_rate, config_.train.clip_norm);
  if (parallel_ && parallel_->is_sharded()) {
    parallel_->gather_parameters();
    if (working_) working_->forget();
  }
  const Tensor numbers = torch::cat({sums, norm.to(torch::kFloat64).reshape({1})});
  if (device_.is_cpu()) {
    update.numbers = numbers;
  } else {
    update.numbers = torch::empty({3}, torch::TensorOptions(torch::kFloat64).pinned_memory(true));
    update.numbers.copy_(numbers, /*non_blocking=*/true);
    const c10::impl::VirtualGuardImpl device(device_.type());
    update.arrived.emplace(device_.type());
    update.arrived->record(device.getStream(numbers.device()));
  }
  pending_.push_back(std::move(update));
}

StepReport Trainer::finish() {
  if (pending_.empty()) {
    throw Error("diffattn: Trainer.finish(): expected an update that begin() started, got none");
  }
  Pending update = std::move(pending_.front());
  pending_.pop_front();
  if (update.arrived) update.arrived->synchronize();
  StepReport report = update.report;
  report.loss = update.numbers[0].item<double>();
  report.tokens = static_cast<int64_t>(update.numbers[1].item<double>());
  report.gradient_norm = update.numbers[2].item<double>();
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.gradient_norm);
  ++state.step;
  state.tokens += report.tokens;
  state.skipped += report.skipped ? 1 : 0;
  state.skipped_in_row = report.skipped ? state.skipped_in_row + 1 : 0;
  // Updates overlap: an update takes the time since the last one finished.
  const auto now = std::chrono::steady_clock::now();
  report.seconds =
      std::chrono::duration<double>(now - std::max(update.start, last_finish_)).count();
  last_finish_ = now;
  const double speed = report.flops / report.seconds;
  peak_flops_ = std::max(peak_flops_, speed);
  report.utilisation = speed / peak_flops_;
  return report;
}

std::vector<std::pair<std::string, Tensor>> Trainer::optimizer_part() const {
  return parallel_ ? parallel_->own_state(optimizer_) : optimizer_.state();
}

bool Trainer::has_parts() const { return parallel_ && parallel_->is_sharded(); }

void Trainer::set_optimizer_state(
    const std::function<Tensor(const std::string& name, int64_t count)>& whole) {
  if (parallel_) return parallel_->set_state(optimizer_, whole);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : optimizer_.state()) {
    tensor.copy_(whole(name, tensor.numel()).view(tensor.sizes()));
  }
}

Trainer::WholeWeights::WholeWeights(Trainer& trainer, bool everywhere)
    : layers_(trainer.parallel_ ? &trainer.parallel_->layers() : nullptr) {
  if (layers_ != nullptr) layers_->hold(everywhere);
}

void Trainer::WholeWeights::take() {
  if (layers_ != nullptr) layers_->take();
}

Trainer::WholeWeights::~WholeWeights() {
  if (layers_ != nullptr) layers_->release();
}

int64_t Trainer::pending() const { return static_cast<int64_t>(pending_.size()); }

StepReport Trainer::step(BatchSource& source) {
  if (!pending_.empty()) {
    throw Error("diffattn: Trainer.step(): expected finish() for every begin(), got " +
                std::to_string(pending_.size()) + " updates that are not finished");
  }
  begin(source);
  return finish();
}

}  // namespace diffattn::train
