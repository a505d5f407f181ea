#include <trireme/compress/one_bit_adam_sync.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

namespace trireme::compress {
namespace {

constexpr const char* kName = "one_bit_adam";

bool is_own(const nlohmann::json& state) {
  return state.is_object() && state.value("kind", "") == kName;
}

/// fp32 numbers have their exponent from this bit on.
constexpr int64_t kMantissaBits = 23;

// The exponents of the powers of two at or below the roots of the second moments; 0 where these are 0.
at::Tensor exponents_of(const at::Tensor& second, double eps) {
  const at::Tensor exponents = second.sqrt().add_(eps).view(torch::kInt32).bitwise_right_shift(kMantissaBits);
  return exponents.masked_fill_(second.eq(0), 0).to(torch::kByte);
}

at::Tensor power(const at::Tensor& exponents) {
  return exponents.to(torch::kInt32).bitwise_left_shift_(kMantissaBits).view(torch::kFloat32);
}

// 2^-k has the exponent 254 - e where 2^k has e; 0 stays 0.
at::Tensor inverse_power(const at::Tensor& exponents) {
  return power(exponents.neg().sub_(2).masked_fill_(exponents.eq(0), 0));
}

comm::Stretch overlap(const comm::Stretch& a, const comm::Stretch& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

at::Tensor part(const at::Tensor& of, const comm::Stretch& elements, int64_t first = 0) {
  return of.slice(0, elements.begin - first, elements.end - first);
}

} // namespace

OneBitAdamSync::OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitAdamOptions& options, comm::Group everyone)
    : GradientSync(plain->groups()), plain_(std::move(plain)), options_(options), everyone_(std::move(everyone)), warm_up_(options.freeze_step, options.beta2) {}

void OneBitAdamSync::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  plain_->attach(buffers);
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (int64_t b = 0; b < std::ssize(buffers[i]->layout().buckets()); ++b) {
      Exchange& added = exchanges_.emplace_back();
      added.flat = buffers[i];
      added.buffer = static_cast<int64_t>(i);
      added.bucket = b;
    }
  }
}

comm::Work OneBitAdamSync::gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) {
  if (!gradients_stay()) {
    return plain_->gradients_ready(buffer, bucket);
  }
  plain_->apply_pre_scale(buffer, bucket); // scale() holds in both phases
  return {};
}

// While one bucket is stepped, the messages of the next one travel.
void OneBitAdamSync::step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) {
  if (gradients_stay()) {
    const torch::NoGradGuard no_grad;
    const auto found = std::find_if(exchanges_.begin(), exchanges_.end(), [&](const Exchange& one) { return one.flat == &buffer && one.bucket == bucket; });
    const auto number = static_cast<size_t>(found - exchanges_.begin());
    if (number == 0) {
      make_exchanges();
    }
    for (; started_ < std::min(number + 2, exchanges_.size()); ++started_) {
      start(exchanges_[started_]);
    }
    finish(*found);
  }
  plain_->step_bucket(buffer, bucket, step);
}

bool OneBitAdamSync::end_step(bool taken) {
  const bool changed = plain_->end_step(taken);
  if (taken && gradients_stay() && !std::exchange(reported_, true)) {
    report();
  }
  started_ = 0;
  sent_ = 0;
  if (taken && !gradients_stay() && warm_up_.ends_after(optimizer_->steps(), [this] { return norm_of_second_moments(); })) {
    freeze(optimizer_->steps());
    if (everyone_.rank() == 0) {
      log::info("1-bit Adam: the second moments stay as they are after step ", *frozen_at_, "; from the next one on ranks exchange momenta of one bit an element");
    }
  }
  return changed;
}

void OneBitAdamSync::freeze(int64_t at) {
  frozen_at_ = at;
  optimizer_->freeze(at);
  made_ = false;
}

void OneBitAdamSync::for_each_slot(const Exchange& exchange, const std::function<void(const bucket::Slot&, const comm::Stretch&)>& f) const {
  const bucket::FlatLayout& layout = exchange.flat->layout();
  const bucket::Bucket& bucket = layout.buckets()[exchange.bucket];
  for (int64_t s = bucket.first_slot; s < bucket.last_slot; ++s) {
    const bucket::Slot& slot = layout.slots()[s];
    f(slot, {slot.begin - bucket.begin, slot.end - bucket.begin});
  }
}

double OneBitAdamSync::norm_of_second_moments() const {
  const torch::NoGradGuard no_grad;
  at::Tensor sum = torch::zeros({1}, torch::kFloat64);
  for (const Exchange& exchange : exchanges_) {
    const double holders = is_sharded(exchange) ? 1 : group_of(exchange).size();
    optimizer_->with_moments(exchange.buffer, exchange.bucket, false,
                             [&](const at::Tensor&, const at::Tensor& second) { sum.add_(second.sum(torch::kFloat64).cpu(), 1 / holders); });
  }
  everyone_.all_reduce(sum, comm::ReduceOp::sum, "second moments").wait();
  return sum.item<double>();
}

bool OneBitAdamSync::leaves_some_out(const Exchange& exchange) const {
  bool some = false;
  for_each_slot(exchange, [&](const bucket::Slot& slot, const comm::Stretch&) { some = some || optimizer_->is_left_out(exchange.buffer, slot.tensor); });
  return some;
}

// Of the parameters that this step does not leave out; gaps between parameters are not sent. Null: of none.
std::shared_ptr<comm::CompressedAllReduce> OneBitAdamSync::make_round(const Exchange& exchange) const {
  std::vector<comm::Stretch> stretches;
  for_each_slot(exchange, [&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
    if (!optimizer_->is_left_out(exchange.buffer, slot.tensor)) {
      stretches.push_back(in_bucket);
    }
  });
  const int64_t numel = exchange.flat->layout().buckets()[exchange.bucket].numel();
  return stretches.empty() ? nullptr : std::make_shared<comm::CompressedAllReduce>(group_of(exchange), comm::sign_compressor(), numel, std::move(stretches));
}

void OneBitAdamSync::make_errors(Exchange& exchange) {
  if (group_of(exchange).size() > 1 && !exchange.errors.worker.defined()) {
    const int64_t numel = exchange.flat->layout().buckets()[exchange.bucket].numel();
    exchange.errors = comm::CompressedAllReduce(group_of(exchange), comm::sign_compressor(), numel).no_errors(exchange.flat->device());
  }
}

void OneBitAdamSync::make_exchanges() {
  if (std::exchange(made_, true)) {
    return;
  }
  int64_t dead = 0;
  for (Exchange& exchange : exchanges_) {
    const bucket::Bucket& bucket = exchange.flat->layout().buckets()[exchange.bucket];
    const bucket::Range owned = is_sharded(exchange) ? exchange.flat->plan().mine(exchange.bucket) : bucket::Range{bucket.begin, bucket.end};
    exchange.owned = {owned.begin - bucket.begin, owned.end - bucket.begin};
    make_errors(exchange);
    optimizer_->with_moments(exchange.buffer, exchange.bucket, false, [&](const at::Tensor& first, const at::Tensor& second) {
      exchange.first = is_sharded(exchange) ? gathered(exchange, first) : at::Tensor();
      const at::Tensor exponents = exponents_of(second, options_.eps);
      exchange.exponents = is_sharded(exchange) ? gathered(exchange, exponents) : exponents;
    });
    int64_t here = 0;
    for_each_slot(exchange, [&](const bucket::Slot&, const comm::Stretch& in_bucket) { here += part(exchange.exponents, in_bucket).eq(0).sum().item<int64_t>(); });
    dead += here;
    exchange.some_dead = here > 0;
  }
  if (dead > 0 && group().rank() == 0) {
    log::info("1-bit Adam: ", dead, " elements of parameters had no gradient in the warm-up, and keep their values");
  }
}

at::Tensor OneBitAdamSync::gathered(const Exchange& exchange, const at::Tensor& own) const {
  const at::Tensor all = torch::empty({exchange.flat->layout().buckets()[exchange.bucket].numel()}, own.options());
  group_of(exchange).all_gather(all, own, "moments").wait();
  return all;
}

// Adam's first moment by this rank's gradient alone, in units of the powers of two.
void OneBitAdamSync::start(Exchange& exchange) {
  const bucket::Bucket& bucket = exchange.flat->layout().buckets()[exchange.bucket];
  const int ranks = group_of(exchange).size();
  const double beta1 = optimizer_->betas().value_or(optim::Betas{options_.beta1, options_.beta2}).beta1;
  const double weight = (1 - beta1) * optimizer_->grad_scale() * ranks; // the mean over the ranks becomes what their sum is to be
  const auto moved = [&](const at::Tensor& first) { return first.mul(beta1).add_(exchange.flat->owned_grad(exchange.bucket, {bucket.begin, bucket.end}), weight); };
  if (exchange.first.defined()) {
    exchange.moment = moved(exchange.first);
  } else {
    optimizer_->with_moments(exchange.buffer, exchange.bucket, false, [&](const at::Tensor& first, const at::Tensor&) { exchange.moment = moved(first); });
  }
  exchange.moment.mul_(inverse_power(exchange.exponents));
  if (ranks == 1) {
    return;
  }
  const bool some_out = leaves_some_out(exchange);
  if (some_out) {
    for_each_slot(exchange, [&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      if (optimizer_->is_left_out(exchange.buffer, slot.tensor)) {
        part(exchange.moment, in_bucket).zero_();
      }
    });
  } else if (!exchange.reduce) {
    exchange.reduce = make_round(exchange);
  }
  exchange.round = some_out ? make_round(exchange) : exchange.reduce;
  if (exchange.round) {
    const int64_t before = group_of(exchange).bytes_sent();
    exchange.round->start(exchange.moment, exchange.errors, concat("momenta, bucket ", exchange.bucket));
    sent_ += group_of(exchange).bytes_sent() - before;
  }
}

void OneBitAdamSync::finish(Exchange& exchange) {
  const at::Tensor moment = std::exchange(exchange.moment, at::Tensor());
  if (const auto round = std::exchange(exchange.round, nullptr)) {
    const int64_t before = group_of(exchange).bytes_sent();
    round->turn(exchange.errors);
    round->finish(moment);
    sent_ += group_of(exchange).bytes_sent() - before;
    if (exchange.some_dead) { // they are 0 whatever the others do
      const at::Tensor dead = exchange.exponents.eq(0);
      exchange.errors.worker.masked_fill_(dead, 0);
      exchange.errors.server.masked_fill_(part(dead, round->mine()), 0);
    }
  }
  moment.mul_(power(exchange.exponents));
  optimizer_->with_moments(exchange.buffer, exchange.bucket, true, [&](const at::Tensor& first, const at::Tensor&) {
    for_each_slot(exchange, [&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      if (optimizer_->is_left_out(exchange.buffer, slot.tensor)) {
        return;
      }
      if (const comm::Stretch here = overlap(in_bucket, exchange.owned); here.count() > 0) {
        part(first, here, exchange.owned.begin).copy_(part(moment, here));
      }
      if (exchange.first.defined()) {
        part(exchange.first, in_bucket).copy_(part(moment, in_bucket));
      }
    });
  });
}

// Peers have been used for months without compressing anything.
void OneBitAdamSync::report() const {
  double plain = 0;
  for (const Exchange& exchange : exchanges_) {
    const int ranks = group_of(exchange).size();
    const auto bytes = static_cast<double>(exchange.flat->layout().buckets()[exchange.bucket].numel() * static_cast<int64_t>(c10::elementSize(plain_->travel(*exchange.flat))));
    plain += (is_sharded(exchange) ? 1 : 2) * bytes * (ranks - 1) / ranks;
  }
  if (everyone_.rank() == 0 && sent_ > 0) {
    log::info("1-bit Adam: a rank sent ", sent_, " bytes of momenta in step ", optimizer_->steps(), " where gradients take ", static_cast<int64_t>(plain), ", ",
              static_cast<double>(static_cast<int64_t>(10 * plain / static_cast<double>(sent_))) / 10, " times as many");
  }
}

nlohmann::json OneBitAdamSync::state() const {
  return {{"kind", kName},
          {"frozen_at", frozen_at_ ? nlohmann::json(*frozen_at_) : nlohmann::json(nullptr)},
          {"ranks", group().size()},
          {"warm_up", warm_up_.state()}};
}

bool OneBitAdamSync::has_tensors(const nlohmann::json& state) const {
  return is_own(state) && !state.at("frozen_at").is_null() && state.at("ranks") == group().size();
}

void OneBitAdamSync::load_state(const nlohmann::json& state, int64_t /*steps*/) {
  frozen_at_ = is_own(state) && !state.at("frozen_at").is_null() ? std::optional(state.at("frozen_at").get<int64_t>()) : std::nullopt;
  optimizer_->freeze(frozen_at_);
  warm_up_.load_state(is_own(state) ? state.at("warm_up") : nlohmann::json());
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
    make_errors(exchange);
    if (!exchange.errors.worker.defined()) {
      continue;
    }
    const comm::Stretch mine = comm::CompressedAllReduce(group_of(exchange), comm::sign_compressor(), exchange.errors.worker.numel()).mine();
    for_each_slot(exchange, [&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      const bucket::TensorInfo& tensor = exchange.flat->layout().tensors()[slot.tensor];
      visit(concat("worker_error_", group_of(exchange).rank()), tensor, 0, part(exchange.errors.worker, in_bucket));
      const comm::Stretch here = overlap(in_bucket, mine);
      if (here.count() > 0) {
        visit("server_error", tensor, here.begin - in_bucket.begin, part(exchange.errors.server, here, mine.begin));
      }
    });
  }
}

} // namespace trireme::compress
