#include <trireme/extensions/compress/one_bit_adam_sync.h>

#include <trireme/base/error.h>
#include <trireme/extensions/compress/compressors/compressor.h>
#include <trireme/kernels/kernels.h>

#include <torch/types.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace trireme::compress {
namespace {

using Access = bucket::SteppedValues::Access;
using Values = bucket::SteppedValues::Values;

} // namespace

OneBitAdamSync::OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitAdamOptions& options,
                               comm::Group everyone)
    : OneBitAdamSync(std::move(plain), {"one_bit_adam", "1-bit Adam", options.beta1, options.eps},
                     WarmUp(options.freeze_step, options.beta2), std::move(everyone)) {}

OneBitAdamSync::OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const MomentumOptions& options,
                               WarmUp warm_up, comm::Group everyone)
    : CompressedSync(std::move(plain), std::move(everyone), options.name),
      options_(options),
      warm_up_(std::move(warm_up)) {}

void OneBitAdamSync::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  CompressedSync::attach(buffers);
  units_.resize(places().size());
  first_.resize(places().size());
}

std::unique_ptr<BucketMean> OneBitAdamSync::make_mean(const BucketPlace& place) const {
  return compressed_mean(place, comm::sign_compressor());
}

void OneBitAdamSync::step_ended(bool taken) {
  if (taken && !frozen_at_ && warm_up_.ends_after(values().steps(), [this] { return norm_of_second_moments(); })) {
    freeze(values().steps());
    log_first(concat("the second moments are frozen after step ", *frozen_at_,
                     "; from the next step on ranks exchange momenta with one bit per element"));
  }
}

void OneBitAdamSync::freeze(int64_t at) {
  frozen_at_ = at;
  values().hold({.first = true, .second = true, .second_steps = at});
  made_ = false;
}

double OneBitAdamSync::norm_of_second_moments() const {
  const at::Tensor sum = torch::zeros({1}, torch::kFloat64);
  for (const BucketPlace& place : places()) {
    const double holders = is_sharded(place) ? 1 : place.ranks.size();
    values().with_values(place.buffer, place.bucket, Access::read_all,
                         [&](const Values& of) { sum.add_(of.states[1].sum(torch::kFloat64).cpu(), 1 / holders); });
  }
  everyone().all_reduce(sum, comm::ReduceOp::sum, "second moments").wait();
  return sum.item<double>();
}

void OneBitAdamSync::make_units() {
  for (size_t i = 0; i < places().size(); ++i) {
    const BucketPlace& place = places()[i];
    std::vector<comm::Stretch> used;
    place.for_each_slot([&](const bucket::Slot&, const comm::Stretch& in_bucket) { used.push_back(in_bucket); });
    values().with_values(place.buffer, place.bucket, Access::read_all, [&](const Values& of) {
      const at::Tensor exponents = Units::exponents_of(of.states[1], options_.eps);
      units_[i] = Units(is_sharded(place) ? gathered(place, exponents) : exponents, used);
    });
  }
}

void OneBitAdamSync::before_exchange() {
  if (std::exchange(made_, true)) {
    return;
  }
  make_units();
  int64_t dead = 0;
  for (size_t i = 0; i < places().size(); ++i) {
    const BucketPlace& place = places()[i];
    values().with_values(place.buffer, place.bucket, Access::read_all, [&](const Values& of) {
      first_[i] = is_sharded(place) ? gathered(place, of.states[0]) : at::Tensor();
    });
    dead += units_[i].dead_count();
  }
  if (dead > 0) {
    log_first(concat(dead, " elements of parameters had no gradient in the warm-up and keep their values"));
  }
}

// Moves Adam's first moment by this rank's gradient alone.
at::Tensor OneBitAdamSync::numbers_of(size_t number) {
  const BucketPlace& place = places()[number];
  at::Tensor moment = own_gradient(place, 1 - beta1());
  if (first_[number].defined()) {
    moment.add_(first_[number], beta1());
  } else {
    values().with_values(place.buffer, place.bucket, Access::read_all,
                         [&](const Values& of) { moment.add_(of.states[0], beta1()); });
  }
  units_[number].divide(moment);
  return moment;
}

void OneBitAdamSync::take(size_t number, const at::Tensor& moment) {
  const BucketPlace& place = places()[number];
  const Units& units = units_[number];
  clear_dead_errors(number);
  units.multiply(moment);
  const comm::Stretch here = owned(place);
  values().with_values(place.buffer, place.bucket, Access::write_states, [&](const Values& of) {
    const at::Tensor before = wants_moved() ? of.states[0].clone() : at::Tensor();
    place.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      if (is_left_out(place, slot.tensor)) {
        return;
      }
      if (const comm::Stretch mine = overlap(in_bucket, here); mine.count() > 0) {
        part(of.states[0], mine, here.begin).copy_(part(moment, mine));
      }
      if (first_[number].defined()) {
        part(first_[number], in_bucket).copy_(part(moment, in_bucket));
      }
    });
    if (before.defined()) {
      moved(number, before, of.states[0]);
    }
  });
}

// Does the same as numbers_of(), one stretch at a time.
bool OneBitAdamSync::start_by_stretches(size_t number, const BucketMean::LeftOut& left_out) {
  const BucketPlace& place = places()[number];
  if (!mean(number).by_stretches()) {
    return false;
  }
  kernels::MomentumArgs args = gradient_args(place, 1 - beta1());
  args.beta1 = static_cast<float>(beta1());
  args.exponents = units_[number].exponents().const_data_ptr<uint8_t>();
  bool started = false;
  values().with_values(place.buffer, place.bucket, Access::read_all, [&](const Values& of) {
    const at::Tensor& first = first_[number].defined() ? first_[number] : of.states[0];
    if (started = of.states[0].scalar_type() == torch::kFloat32; started) {
      args.first = first.const_data_ptr<float>();
      mean(number).start(adder(args), left_out);
    }
  });
  return started;
}

// Does the same as take(), one stretch at a time.
void OneBitAdamSync::take_by_stretches(size_t number) {
  const BucketPlace& place = places()[number];
  const comm::Stretch here = owned(place);
  const auto* const exponents = units_[number].exponents().const_data_ptr<uint8_t>();
  auto* const whole = first_[number].defined() ? first_[number].mutable_data_ptr<float>() : nullptr;
  values().with_values(place.buffer, place.bucket, Access::write_states, [&](const Values& of) {
    const at::Tensor before = wants_moved() ? of.states[0].clone() : at::Tensor();
    auto* const own = of.states[0].mutable_data_ptr<float>();
    mean(number).finish([&](int64_t begin, int64_t end, float* moments) {
      kernels::active_kernels().scale_by_powers(exponents + begin, end - begin, false, moments);
      if (const comm::Stretch mine = overlap({begin, end}, here); mine.count() > 0) {
        std::copy_n(moments + (mine.begin - begin), mine.count(), own + (mine.begin - here.begin));
      }
      if (whole != nullptr) {
        std::copy_n(moments, end - begin, whole + begin);
      }
    });
    if (before.defined()) {
      moved(number, before, of.states[0]);
    }
  });
  clear_dead_errors(number);
}

bool OneBitAdamSync::is_own(const nlohmann::json& state) const {
  return state.is_object() && state.value("kind", "") == options_.kind;
}

nlohmann::json OneBitAdamSync::state() const {
  nlohmann::json state = layout();
  state.update({{"kind", options_.kind},
                {"frozen_at", frozen_at_ ? nlohmann::json(*frozen_at_) : nlohmann::json(nullptr)},
                {"warm_up", warm_up_.state()}});
  return state;
}

bool OneBitAdamSync::errors_fit(const nlohmann::json& state) const {
  return is_own(state) && !state.at("frozen_at").is_null() && other_layout(state).empty();
}

void OneBitAdamSync::load_state(const nlohmann::json& state, int64_t /*steps*/) {
  frozen_at_ = is_own(state) && !state.at("frozen_at").is_null() ? std::optional(state.at("frozen_at").get<int64_t>())
                                                                 : std::nullopt;
  values().hold(frozen_at_ ? bucket::HeldMoments{.first = true, .second = true, .second_steps = frozen_at_}
                           : bucket::HeldMoments());
  warm_up_.load_state(is_own(state) ? state.at("warm_up") : nlohmann::json());
  made_ = false;
  forget_errors();
  if (frozen_at_ && !errors_fit(state)) {
    log_first(concat("the checkpoint ", other_layout(state), "; the errors of compression begin at zero"));
  }
}

void OneBitAdamSync::for_each_state(const nlohmann::json& state, const Visit& visit) {
  if (errors_fit(state)) {
    for (size_t i = 0; i < places().size(); ++i) {
      mean(i).for_each_state(visit);
    }
  }
}

} // namespace trireme::compress
