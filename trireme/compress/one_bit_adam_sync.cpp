#include <trireme/compress/one_bit_adam_sync.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

namespace trireme::compress {
namespace {

int64_t bytes_sent(const parallel::ReduceGroups& groups) {
  int64_t sum = 0;
  for (const comm::Group& group : groups.all()) {
    sum += group.bytes_sent();
  }
  return sum;
}

} // namespace

OneBitAdamSync::OneBitAdamSync(parallel::ReduceGroups groups, const parallel::DataParallelOptions& data_parallel, std::optional<at::ScalarType> travel,
                               const optim::OneBitAdamOptions& options, comm::Group everyone)
    : AllReduceSync(std::move(groups), data_parallel, travel), options_(options), everyone_(std::move(everyone)), warm_up_(options.freeze_step, options.beta2) {}

void OneBitAdamSync::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (int64_t b = 0; b < std::ssize(buffers[i]->layout().buckets()); ++b) {
      exchanges_.push_back({buffers[i], static_cast<int64_t>(i), b, {}, {}, {}, {}, {}});
    }
  }
}

comm::Work OneBitAdamSync::gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) {
  if (!gradients_stay()) {
    return AllReduceSync::gradients_ready(buffer, bucket);
  }
  apply_pre_scale(buffer, bucket); // scale() holds in both phases
  return {};
}

// While one bucket is stepped, the messages of the next one travel.
void OneBitAdamSync::step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) {
  if (!gradients_stay()) {
    step();
    return;
  }
  const torch::NoGradGuard no_grad;
  const auto found = std::find_if(exchanges_.begin(), exchanges_.end(), [&](const Exchange& one) { return one.flat == &buffer && one.bucket == bucket; });
  const auto number = static_cast<size_t>(found - exchanges_.begin());
  if (number == 0) {
    make_exchanges();
    sent_before_ = bytes_sent(groups());
  }
  for (; started_ < std::min(number + 2, exchanges_.size()); ++started_) {
    start(exchanges_[started_]);
  }
  finish(*found);
  step();
}

bool OneBitAdamSync::end_step(bool taken) {
  if (taken && gradients_stay() && !std::exchange(reported_, true)) {
    report();
  }
  started_ = 0;
  if (taken && !gradients_stay() && warm_up_.ends_after(optimizer_->steps(), [this] { return norm_of_second_moments(); })) {
    freeze(optimizer_->steps());
    if (everyone_.rank() == 0) {
      log::info("1-bit Adam: the second moments stay as they are after step ", *frozen_at_, "; from the next one on ranks exchange momenta of one bit an element");
    }
  }
  return false;
}

void OneBitAdamSync::freeze(int64_t at) {
  frozen_at_ = at;
  optimizer_->freeze(at);
  made_ = false;
}

// Of the parameters that count once.
double OneBitAdamSync::norm_of_second_moments() const {
  const torch::NoGradGuard no_grad;
  at::Tensor sum = torch::zeros({1}, torch::kFloat64);
  for (const Exchange& exchange : exchanges_) {
    optimizer_->with_moments(exchange.buffer, exchange.bucket, false, [&](const at::Tensor&, const at::Tensor& second) {
      sum.add_(second.sum(torch::kFloat64).cpu(), 1.0 / group_of(exchange).size());
    });
  }
  everyone_.all_reduce(sum, comm::ReduceOp::sum, "second moments").wait();
  return sum.item<double>();
}

bool OneBitAdamSync::leaves_some_out(const Exchange& exchange) const {
  const bucket::FlatLayout& layout = exchange.flat->layout();
  const bucket::Bucket& bucket = layout.buckets()[exchange.bucket];
  return std::any_of(layout.slots().begin() + bucket.first_slot, layout.slots().begin() + bucket.last_slot,
                     [&](const bucket::Slot& slot) { return optimizer_->is_left_out(exchange.buffer, slot.tensor); });
}

// Of the parameters that this step does not leave out; gaps between parameters are not sent.
std::shared_ptr<comm::CompressedAllReduce> OneBitAdamSync::make_round(const Exchange& exchange) const {
  const bucket::FlatLayout& layout = exchange.flat->layout();
  const bucket::Bucket& bucket = layout.buckets()[exchange.bucket];
  std::vector<comm::Stretch> stretches;
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = layout.slots()[s];
    if (!optimizer_->is_left_out(exchange.buffer, slot.tensor)) {
      stretches.push_back({slot.begin - bucket.begin, slot.end - bucket.begin});
    }
  }
  return stretches.empty() ? nullptr : std::make_shared<comm::CompressedAllReduce>(group_of(exchange), comm::sign_compressor(), bucket.numel(), std::move(stretches));
}

void OneBitAdamSync::make_exchanges() {
  if (std::exchange(made_, true)) {
    return;
  }
  int64_t dead = 0;
  for (Exchange& exchange : exchanges_) {
    const bucket::FlatLayout& layout = exchange.flat->layout();
    const bucket::Bucket& bucket = layout.buckets()[exchange.bucket];
    if (group_of(exchange).size() > 1 && !exchange.errors.worker.defined()) {
      const comm::CompressedAllReduce whole(group_of(exchange), comm::sign_compressor(), bucket.numel());
      exchange.errors = whole.no_errors(exchange.flat->device());
    }
    optimizer_->with_moments(exchange.buffer, exchange.bucket, false, [&](const at::Tensor&, const at::Tensor& second) {
      at::Tensor zeros = second.eq(0);
      int64_t here = 0;
      for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
        const bucket::Slot& slot = layout.slots()[s];
        here += zeros.slice(0, slot.begin - bucket.begin, slot.end - bucket.begin).sum().item<int64_t>();
      }
      dead += here;
      exchange.dead = here > 0 ? zeros : at::Tensor();
    });
  }
  if (dead > 0 && group().rank() == 0) {
    log::info("1-bit Adam: ", dead, " elements of parameters had no gradient in the warm-up, and keep their values");
  }
}

void OneBitAdamSync::start(Exchange& exchange) {
  const bucket::Bucket& bucket = exchange.flat->layout().buckets()[exchange.bucket];
  const double beta1 = optimizer_->betas().value_or(optim::Betas{options_.beta1, options_.beta2}).beta1;
  const double scale = optimizer_->grad_scale() * group_of(exchange).size(); // the mean over the ranks becomes what their sum is to be
  const at::Tensor gradients = exchange.flat->owned_grad(exchange.bucket, {bucket.begin, bucket.end});
  const bool some_out = leaves_some_out(exchange);
  optimizer_->with_moments(exchange.buffer, exchange.bucket, false, [&](const at::Tensor& first, const at::Tensor&) {
    exchange.moment = first.mul(beta1).add_(gradients, (1 - beta1) * scale);
  });
  if (exchange.dead.defined()) {
    exchange.moment.masked_fill_(exchange.dead, 0);
  }
  for (int64_t s = bucket.first_slot; some_out && s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = exchange.flat->layout().slots()[s];
    if (optimizer_->is_left_out(exchange.buffer, slot.tensor)) {
      exchange.moment.slice(0, slot.begin - bucket.begin, slot.end - bucket.begin).zero_();
    }
  }
  if (group_of(exchange).size() == 1) {
    return;
  }
  if (!exchange.reduce && !some_out) {
    exchange.reduce = make_round(exchange);
  }
  exchange.round = some_out ? make_round(exchange) : exchange.reduce;
  if (exchange.round) {
    exchange.round->start(exchange.moment, exchange.errors, concat("momenta, bucket ", exchange.bucket));
  }
}

void OneBitAdamSync::finish(Exchange& exchange) {
  const bucket::FlatLayout& layout = exchange.flat->layout();
  const bucket::Bucket& bucket = layout.buckets()[exchange.bucket];
  if (const auto round = std::exchange(exchange.round, nullptr)) {
    round->turn(exchange.errors);
    round->finish(exchange.moment);
    if (exchange.dead.defined()) {
      const comm::Stretch mine = round->mine();
      exchange.moment.masked_fill_(exchange.dead, 0);
      exchange.errors.worker.masked_fill_(exchange.dead, 0);
      exchange.errors.server.masked_fill_(exchange.dead.slice(0, mine.begin, mine.end), 0);
    }
  }
  const at::Tensor moment = std::exchange(exchange.moment, at::Tensor());
  optimizer_->with_moments(exchange.buffer, exchange.bucket, true, [&](const at::Tensor& first, const at::Tensor&) {
    for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
      const bucket::Slot& slot = layout.slots()[s];
      if (!optimizer_->is_left_out(exchange.buffer, slot.tensor)) {
        const auto part = [&](const at::Tensor& of) { return of.slice(0, slot.begin - bucket.begin, slot.end - bucket.begin); };
        part(first).copy_(part(moment));
      }
    }
  });
}

// Peers have been used for months without compressing anything.
void OneBitAdamSync::report() const {
  const int64_t sent = bytes_sent(groups()) - sent_before_;
  double plain = 0;
  for (const Exchange& exchange : exchanges_) {
    const int ranks = group_of(exchange).size();
    const auto bytes = static_cast<double>(exchange.flat->layout().buckets()[exchange.bucket].numel() * static_cast<int64_t>(c10::elementSize(travel(*exchange.flat))));
    plain += 2 * bytes * (ranks - 1) / ranks;
  }
  if (everyone_.rank() == 0 && sent > 0) {
    log::info("1-bit Adam: a rank sent ", sent, " bytes of momenta in step ", optimizer_->steps(), " where gradients take ", static_cast<int64_t>(plain), ", ",
              static_cast<int64_t>(10 * plain / static_cast<double>(sent)) / 10.0, " times as many");
  }
}

nlohmann::json OneBitAdamSync::state() const {
  return {{"kind", "one_bit_adam"},
          {"frozen_at", frozen_at_ ? nlohmann::json(*frozen_at_) : nlohmann::json(nullptr)},
          {"ranks", group().size()},
          {"warm_up", warm_up_.state()}};
}

bool OneBitAdamSync::has_tensors(const nlohmann::json& state) const {
  return state.is_object() && state.value("kind", "") == "one_bit_adam" && !state.at("frozen_at").is_null() && state.at("ranks") == group().size();
}

void OneBitAdamSync::load_state(const nlohmann::json& state) {
  const bool own = state.is_object() && state.value("kind", "") == "one_bit_adam";
  frozen_at_ = own && !state.at("frozen_at").is_null() ? std::optional(state.at("frozen_at").get<int64_t>()) : std::nullopt;
  optimizer_->freeze(frozen_at_);
  warm_up_.load_state(own ? state.at("warm_up") : nlohmann::json());
  made_ = false;
  for (Exchange& exchange : exchanges_) {
    exchange.errors = {};
  }
  if (frozen_at_ && !has_tensors(state) && everyone_.rank() == 0) {
    log::info("1-bit Adam: the checkpoint is from ", state.at("ranks"), " data ranks, this run has ", group().size(), "; the errors of compression begin at zero");
  }
}

void OneBitAdamSync::for_each_state(const Visit& visit) {
  for (Exchange& exchange : exchanges_) {
    const comm::Group& ranks = group_of(exchange);
    if (ranks.size() == 1) {
      continue;
    }
    const bucket::FlatLayout& layout = exchange.flat->layout();
    const bucket::Bucket& bucket = layout.buckets()[exchange.bucket];
    const comm::CompressedAllReduce whole(ranks, comm::sign_compressor(), bucket.numel());
    if (!exchange.errors.worker.defined()) {
      exchange.errors = whole.no_errors(exchange.flat->device());
    }
    for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
      const bucket::Slot& slot = layout.slots()[s];
      const comm::Stretch in_bucket{slot.begin - bucket.begin, slot.end - bucket.begin};
      visit(concat("worker_error_", ranks.rank()), layout.tensors()[slot.tensor], 0, exchange.errors.worker.slice(0, in_bucket.begin, in_bucket.end));
      const int64_t begin = std::max(in_bucket.begin, whole.mine().begin);
      const int64_t end = std::min(in_bucket.end, whole.mine().end);
      if (begin < end) {
        visit("server_error", layout.tensors()[slot.tensor], begin - in_bucket.begin, exchange.errors.server.slice(0, begin - whole.mine().begin, end - whole.mine().begin));
      }
    }
  }
}

} // namespace trireme::compress
