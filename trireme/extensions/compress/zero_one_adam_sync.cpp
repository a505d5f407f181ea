#include <trireme/extensions/compress/zero_one_adam_sync.h>

#include <trireme/base/error.h>

#include <torch/types.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace trireme::compress {
namespace {

using Access = bucket::SteppedValues::Access;
using Values = bucket::SteppedValues::Values;

} // namespace

ZeroOneAdamSync::ZeroOneAdamSync(std::unique_ptr<parallel::AllReduceSync> plain,
                                 const optim::ZeroOneAdamOptions& options, comm::Group everyone, bool alone)
    : OneBitAdamSync(std::move(plain), {"zero_one_adam", "0/1 Adam", options.beta1, options.eps},
                     WarmUp(options.var_freeze_step, options.beta2), std::move(everyone)),
      options_(options),
      intervals_(options),
      may_be_alone_(alone && group().size() > 1) {}

void ZeroOneAdamSync::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  OneBitAdamSync::attach(buffers);
  buffers_ = buffers;
  begin_round();
}

void ZeroOneAdamSync::attach_optimizer(bucket::SteppedValues& values) {
  OneBitAdamSync::attach_optimizer(values);
  choose_kind();
}

// Chooses the kind of the next step.
void ZeroOneAdamSync::choose_kind() {
  const int64_t step = steps_ + 1;
  const Kind before = std::exchange(kind_, !intervals_.is_frozen_in(step)
                                               ? (intervals_.moves_in(step) ? Kind::variance : Kind::gradients)
                                           : may_be_alone_ ? Kind::alone
                                                           : Kind::momenta);
  const int64_t moves = std::max<int64_t>(1, intervals_.moves());
  switch (kind_) {
    case Kind::variance:
      values().hold({.second_steps = intervals_.moves() + 1});
      break;
    case Kind::gradients:
    case Kind::alone:
      values().hold({.second = true, .second_steps = moves});
      break;
    case Kind::momenta:
      if (before != Kind::momenta) {
        freeze(moves);
      }
      break;
  }
}

comm::Work ZeroOneAdamSync::gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) {
  return kind_ == Kind::alone ? comm::Work() : OneBitAdamSync::gradients_ready(buffer, bucket);
}

void ZeroOneAdamSync::gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) {
  if (kind_ != Kind::alone) {
    OneBitAdamSync::gradients_alone(buffer, bucket);
  }
}

// Makes the units of the present second moments: errors have them before and after the second moments move.
void ZeroOneAdamSync::begin_step() {
  const torch::NoGradGuard no_grad;
  const bool wants_units = kind_ == Kind::variance ? has_errors_ : kind_ != Kind::momenta;
  if (wants_units && !std::exchange(units_made_, true)) {
    make_units();
  }
  OneBitAdamSync::begin_step();
}

void ZeroOneAdamSync::remake_units() {
  std::vector<Units> before;
  for (size_t i = 0; i < places().size(); ++i) {
    before.push_back(units(i));
  }
  make_units();
  for (size_t i = 0; i < places().size(); ++i) {
    mean(i).scale_errors(before[i].factor_to(units(i)));
  }
}

void ZeroOneAdamSync::before_exchange() {
  if (kind_ == Kind::momenta) {
    OneBitAdamSync::before_exchange();
  }
}

// Averaging steps exchange all parameters, including those that a rank's last step left out.
bool ZeroOneAdamSync::is_left_out(const BucketPlace& place, int64_t parameter) const {
  return !meeting_ && OneBitAdamSync::is_left_out(place, parameter);
}

at::Tensor ZeroOneAdamSync::denominator(const at::Tensor& second) const {
  const double correction = options_.bias_correction
                                ? 1 - std::pow(values().beta2().value_or(options_.beta2),
                                               static_cast<double>(std::max<int64_t>(1, intervals_.moves())))
                                : 1;
  return second.div(correction).sqrt_().add_(options_.eps);
}

at::Tensor ZeroOneAdamSync::numbers_of(size_t number) {
  if (kind_ == Kind::momenta) {
    return OneBitAdamSync::numbers_of(number);
  }
  const BucketPlace& place = places()[number];
  at::Tensor numbers;
  if (kind_ == Kind::gradients) {
    numbers = own_gradient(place);
  } else {
    values().with_values(place.buffer, place.bucket, Access::read_all, [&](const Values& of) {
      numbers = start_[number].clone();
      place.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
        part(numbers, in_bucket)
            .mul_(own_ways_[static_cast<size_t>(place.buffer)][static_cast<size_t>(slot.tensor)].kept);
      });
      numbers.sub_(of.parameters).mul_(denominator(of.states[1]));
    });
  }
  units(number).divide(numbers);
  return numbers;
}

void ZeroOneAdamSync::take(size_t number, const at::Tensor& numbers) {
  if (kind_ == Kind::momenta) {
    OneBitAdamSync::take(number, numbers);
    return;
  }
  const BucketPlace& place = places()[number];
  clear_dead_errors(number);
  units(number).multiply(numbers);
  has_errors_ = true;
  if (kind_ == Kind::gradients) {
    values().give_gradient(place.buffer, place.bucket, numbers);
    return;
  }
  values().with_values(place.buffer, place.bucket, Access::write_all, [&](const Values& of) {
    const at::Tensor moved = numbers.div(denominator(of.states[1]));
    place.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      const Way& way = ways_[static_cast<size_t>(place.buffer)][static_cast<size_t>(slot.tensor)];
      part(of.parameters, in_bucket).copy_(part(start_[number], in_bucket)).mul_(way.kept).sub_(part(moved, in_bucket));
      if (way.rates > 0) {
        part(of.states[0], in_bucket).copy_(part(numbers, in_bucket)).div_(way.rates);
      }
    });
  });
}

bool ZeroOneAdamSync::start_by_stretches(size_t number, const BucketMean::LeftOut& left_out) {
  if (kind_ == Kind::momenta) {
    return OneBitAdamSync::start_by_stretches(number, left_out);
  }
  if (kind_ != Kind::gradients || !mean(number).by_stretches()) {
    return false;
  }
  kernels::MomentumArgs args = gradient_args(places()[number]);
  args.exponents = units(number).exponents().const_data_ptr<uint8_t>();
  mean(number).start(adder(args), left_out);
  return true;
}

void ZeroOneAdamSync::take_by_stretches(size_t number) {
  if (kind_ == Kind::momenta) {
    OneBitAdamSync::take_by_stretches(number);
    return;
  }
  values().give_gradient(places()[number].buffer, places()[number].bucket,
                         finished(number, units(number).exponents().const_data_ptr<uint8_t>()));
  clear_dead_errors(number);
  has_errors_ = true;
}

void ZeroOneAdamSync::begin_round() {
  start_.assign(places().size(), at::Tensor());
  own_ways_.clear();
  for (const bucket::FlatParameters* const buffer : buffers_) {
    own_ways_.emplace_back(static_cast<size_t>(buffer->count()));
  }
}

// Called before anything changes the parameters in this round.
void ZeroOneAdamSync::keep_start(size_t number) {
  if (!start_[number].defined()) {
    const BucketPlace& place = places()[number];
    values().with_values(place.buffer, place.bucket, Access::read,
                         [&](const Values& of) { start_[number] = of.parameters.clone(); });
  }
}

void ZeroOneAdamSync::step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) {
  if (kind_ == Kind::alone) {
    const torch::NoGradGuard no_grad;
    const auto found = std::find_if(places().begin(), places().end(), [&](const BucketPlace& one) {
      return one.flat == &buffer && one.bucket == bucket;
    });
    const auto number = static_cast<size_t>(found - places().begin());
    keep_start(number);
    if (units(number).some_dead()) {
      buffer.bucket_grad(bucket).masked_fill_(units(number).dead(), 0);
    }
  }
  OneBitAdamSync::step_bucket(buffer, bucket, step);
}

void ZeroOneAdamSync::step_ended(bool taken) {
  if (kind_ == Kind::variance && taken) {
    intervals_.moved();
    if (units_made_) {
      remake_units();
    }
  }
  if (kind_ == Kind::alone) {
    if (taken) {
      note_step();
    }
    equal_ = ends_round();
    if (equal_) {
      const auto start = std::chrono::steady_clock::now();
      finish_round();
      exposed_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }
  ++steps_;
  if (steps_ == options_.var_freeze_step) {
    forget_errors();
    has_errors_ = false;
    log_first(concat("the second moments are frozen after step ", steps_,
                     may_be_alone_ ? "; the ranks take local steps and average them in some steps" : ""));
  }
  choose_kind();
}

void ZeroOneAdamSync::note_step() {
  const double correction = options_.bias_correction ? 1 - std::pow(beta1(), static_cast<double>(values().steps())) : 1;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    for (int64_t p = 0; p < buffers_[b]->count(); ++p) {
      if (!values().is_left_out(static_cast<int64_t>(b), p)) {
        const bucket::SteppedValues::Rates rates = values().rates(static_cast<int64_t>(b), p);
        Way& way = own_ways_[b][static_cast<size_t>(p)];
        way.kept *= 1 - rates.lr * rates.weight_decay;
        way.rates = way.rates * (1 - rates.lr * rates.weight_decay) + rates.lr / correction;
      }
    }
  }
}

// Averages over the ranks, because a rank may have skipped steps, and its schedule with them.
void ZeroOneAdamSync::agree_on_ways() {
  ways_ = own_ways_;
  std::vector<double> numbers;
  for (const std::vector<Way>& of_buffer : own_ways_) {
    for (const Way& way : of_buffer) {
      numbers.insert(numbers.end(), {way.kept, way.rates});
    }
  }
  at::Tensor sums = torch::tensor(numbers, torch::kFloat64);
  group().all_reduce(sums, comm::ReduceOp::sum, "rates of the round").wait();
  const double* next = sums.const_data_ptr<double>();
  for (std::vector<Way>& of_buffer : ways_) {
    for (Way& way : of_buffer) {
      way.kept = *next++ / group().size();
      way.rates = *next++ / group().size();
    }
  }
}

void ZeroOneAdamSync::finish_round() {
  agree_on_ways();
  for (size_t i = 0; i < places().size(); ++i) {
    keep_start(i); // no step of the round was taken
  }
  if (!std::exchange(units_made_, true)) {
    make_units();
  }
  meeting_ = true;
  exchange_all();
  meeting_ = false;
  begin_round();
}

bool ZeroOneAdamSync::errors_of(const nlohmann::json& state) const {
  return is_own(state) && state.at("has_errors").get<bool>() && other_layout(state).empty();
}

nlohmann::json ZeroOneAdamSync::state() const {
  nlohmann::json state = OneBitAdamSync::state();
  state["intervals"] = intervals_.state();
  state["has_errors"] = has_errors_ || kind_ == Kind::momenta;
  return state;
}

void ZeroOneAdamSync::load_state(const nlohmann::json& state, int64_t steps) {
  OneBitAdamSync::load_state(nullptr, steps);
  steps_ = steps;
  equal_ = true;
  units_made_ = false;
  intervals_.load_state(is_own(state) ? state.at("intervals") : nlohmann::json(), steps);
  has_errors_ = errors_of(state);
  if (is_own(state) && state.at("has_errors").get<bool>() && !has_errors_) {
    log_first(concat("the checkpoint ", other_layout(state), "; the errors of compression begin at zero"));
  }
  begin_round();
  kind_ = Kind::variance;
  choose_kind();
}

void ZeroOneAdamSync::for_each_state(const nlohmann::json& state, const Visit& visit) {
  if (errors_of(state)) {
    for (size_t i = 0; i < places().size(); ++i) {
      mean(i).for_each_state(visit);
    }
  }
}

} // namespace trireme::compress
