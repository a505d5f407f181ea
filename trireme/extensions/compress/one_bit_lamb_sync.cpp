#include <trireme/extensions/compress/one_bit_lamb_sync.h>

#include <trireme/base/error.h>

#include <torch/types.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace trireme::compress {
namespace {

using Access = bucket::SteppedValues::Access;
using Values = bucket::SteppedValues::Values;

constexpr int64_t kShareElements = 16; // shares are multiples of this

enum Coefficient { average, weight, factor, coefficients };

at::Tensor column(const at::Tensor& of_parameters, Coefficient which) {
  return of_parameters.select(1, which);
}

} // namespace

OneBitLambSync::OneBitLambSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitLambOptions& options,
                               comm::Group everyone)
    : OneBitAdamSync(std::move(plain), {"one_bit_lamb", "1-bit LAMB", options.beta1, options.eps},
                     WarmUp(options.freeze_step, options.beta2), std::move(everyone)),
      options_(options) {}

void OneBitLambSync::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  OneBitAdamSync::attach(buffers);
  buffers_ = buffers;
  begin_coefficients();
}

void OneBitLambSync::begin_coefficients() {
  coefficients_.clear();
  for (const bucket::FlatParameters* const buffer : buffers_) {
    const at::Tensor& begun = coefficients_.emplace_back(
        torch::zeros({buffer->count(), coefficients}, at::TensorOptions(torch::kFloat32).device(buffer->device())));
    column(begun, factor).fill_(1);
  }
  coefficients_are_elsewhere_ = false;
}

comm::Stretch OneBitLambSync::share(const BucketPlace& place) const {
  if (is_sharded(place)) {
    return owned(place);
  }
  const int64_t ranks = place.ranks.size();
  const int64_t each = ((place.numel() + ranks - 1) / ranks + kShareElements - 1) / kShareElements * kShareElements;
  return {std::min(place.ranks.rank() * each, place.numel()), std::min((place.ranks.rank() + 1) * each, place.numel())};
}

void OneBitLambSync::for_each_part(const BucketPlace& place,
                                   const std::function<void(const bucket::Slot&, const comm::Stretch&)>& f) const {
  const comm::Stretch here = share(place);
  place.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
    if (const comm::Stretch mine = overlap(in_bucket, here); mine.count() > 0) {
      f(slot, mine);
    }
  });
}

void OneBitLambSync::make_fresh() {
  fresh_.clear();
  for (const BucketPlace& place : places()) {
    values().with_values(place.buffer, place.bucket, Access::read_all, [&](const Values& of) {
      fresh_.push_back(part(of.states[1], share(place), owned(place).begin).clone());
    });
  }
}

void OneBitLambSync::step_ended(bool taken) {
  const bool was_frozen = frozen_at().has_value();
  if (taken && !was_frozen) {
    average_ratios();
  }
  OneBitAdamSync::step_ended(taken);
  if (frozen_at() && !was_frozen) {
    make_fresh();
  }
}

void OneBitLambSync::average_ratios() {
  share_loaded_coefficients();
  const double beta = options_.coeff_beta;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const at::Tensor ratios = values().trust_ratios(static_cast<int64_t>(b)).to(torch::kFloat32);
    const at::Tensor steps = steps_here(static_cast<int64_t>(b));
    const auto set = [&](Coefficient which, const at::Tensor& with) {
      const at::Tensor old = column(coefficients_[b], which);
      old.copy_(at::where(steps, old.mul(beta).add_(with, 1 - beta), old));
    };
    set(average, ratios);
    set(weight, torch::ones_like(ratios));
  }
}

// Returns which parameters of a buffer the present step does not leave out.
at::Tensor OneBitLambSync::steps_here(int64_t buffer) const {
  const int64_t count = buffers_[static_cast<size_t>(buffer)]->count();
  at::Tensor steps = torch::ones({count}, torch::kBool);
  for (int64_t p = 0; p < count; ++p) {
    steps.mutable_data_ptr<bool>()[p] = !values().is_left_out(buffer, p);
  }
  return steps.to(coefficients_[static_cast<size_t>(buffer)].device());
}

// Distributes coefficients from the rank that has read them: the one with the parameter's first element.
void OneBitLambSync::share_loaded_coefficients() {
  if (!std::exchange(coefficients_are_elsewhere_, false)) {
    return;
  }
  std::vector<at::Tensor> own;
  for (const at::Tensor& one : coefficients_) {
    own.push_back(torch::zeros_like(one));
  }
  for (const BucketPlace& place : places()) {
    const auto b = static_cast<size_t>(place.buffer);
    for_each_part(place, [&](const bucket::Slot& slot, const comm::Stretch& mine) {
      if (mine.begin == slot.begin - place.layout().begin) {
        own[b].select(0, slot.tensor).copy_(coefficients_[b].select(0, slot.tensor));
      }
    });
  }
  for (size_t b = 0; b < buffers_.size(); ++b) {
    groups().of(*buffers_[b]).all_reduce(own[b].view({-1}), comm::ReduceOp::sum, "coefficients of parameters").wait();
    coefficients_[b] = own[b];
  }
}

void OneBitLambSync::moved(size_t number, const at::Tensor& before, const at::Tensor& after) {
  const BucketPlace& place = places()[number];
  const int64_t first = owned(place).begin;
  const double beta2 = values().beta2().value_or(options_.beta2);
  for_each_part(place, [&](const bucket::Slot& slot, const comm::Stretch& mine) {
    if (!is_left_out(place, slot.tensor)) {
      const at::Tensor gradient = part(after, mine, first).sub(part(before, mine, first), beta1()).div_(1 - beta1());
      part(fresh_[number], mine, share(place).begin).mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    }
  });
}

void OneBitLambSync::begin_step() {
  OneBitAdamSync::begin_step();
  if (!compresses()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  share_loaded_coefficients();
  for (size_t first = 0, last = 0; first < places().size(); first = last) {
    for (; last < places().size() && places()[last].buffer == places()[first].buffer; ++last) {
    }
    set_ratios(first, last);
  }
}

// Sets the ratios of one buffer, whose buckets are [first, last).
void OneBitLambSync::set_ratios(size_t first, size_t last) {
  const int64_t buffer = places()[first].buffer;
  const at::Tensor& kept = coefficients_[static_cast<size_t>(buffer)];
  const auto options = at::TensorOptions(torch::kFloat64).device(kept.device());
  const at::Tensor squares =
      torch::zeros({kept.size(0), 2}, options); // norms of the update without and with decay, squared
  const at::Tensor largest = torch::zeros({kept.size(0)}, options);
  for (size_t i = first; i < last; ++i) {
    const BucketPlace& place = places()[i];
    const int64_t begin = owned(place).begin;
    const auto root = [&](const at::Tensor& square) {
      return options_.eps_inside_sqrt ? square.add(options_.eps).sqrt_() : square.sqrt().add_(options_.eps);
    };
    values().with_values(place.buffer, place.bucket, Access::read_all, [&](const Values& of) {
      for_each_part(place, [&](const bucket::Slot& slot, const comm::Stretch& mine) {
        const at::Tensor second = part(of.states[1], mine, begin);
        const at::Tensor frozen = root(second);
        const at::Tensor update = part(of.states[0], mine, begin).div(frozen);
        const at::Tensor of_parameter = squares.select(0, slot.tensor);
        of_parameter.select(0, 0).add_(update.to(torch::kFloat64).square_().sum());
        update.add_(part(of.parameters, mine, begin), values().rates(buffer, slot.tensor).weight_decay);
        of_parameter.select(0, 1).add_(update.to(torch::kFloat64).square_().sum());
        const at::Tensor ratio =
            frozen.div(root(part(fresh_[i], mine, share(place).begin))).masked_fill_(second.eq(0), 0);
        const at::Tensor most = largest.select(0, slot.tensor);
        most.copy_(at::maximum(most, ratio.max().to(torch::kFloat64)));
      });
    });
  }
  const comm::Group& ranks = places()[first].ranks;
  ranks.all_reduce(squares.view({-1}), comm::ReduceOp::sum, "norms of updates").wait();
  ranks.all_reduce(largest, comm::ReduceOp::max, "changes of second moments").wait();
  const at::Tensor norms = squares.sqrt();
  const at::Tensor whole = norms.select(1, 1);
  const at::Tensor share_of_it =
      at::where(whole.gt(0), norms.select(1, 0).div(whole).clamp_max_(1), torch::ones_like(whole));
  const at::Tensor before = column(kept, factor).to(torch::kFloat64);
  at::Tensor now = largest.mul(share_of_it).add_(1 - share_of_it).clamp_(options_.factor_min, options_.factor_max);
  now = at::maximum(at::minimum(now, before.mul(1 + options_.factor_threshold)),
                    before.mul(1 - options_.factor_threshold))
            .to(torch::kFloat32);
  column(kept, factor).copy_(at::where(steps_here(buffer), now, column(kept, factor)));
  const at::Tensor exact = kept.to(torch::kFloat64);
  values().set_trust_ratios(buffer, column(exact, average).div(column(exact, weight)).mul_(column(exact, factor)));
}

void OneBitLambSync::load_state(const nlohmann::json& state, int64_t steps) {
  OneBitAdamSync::load_state(state, steps);
  begin_coefficients();
  coefficients_are_elsewhere_ = is_own(state) && other_cut(state).empty();
  fresh_.clear();
  if (frozen_at()) {
    make_fresh(); // the values are loaded next
  }
}

void OneBitLambSync::for_each_state(const nlohmann::json& state, const Visit& visit) {
  OneBitAdamSync::for_each_state(state, visit);
  if (!is_own(state)) {
    return;
  }
  const bool has_fresh = !state.at("frozen_at").is_null();
  const std::string other = other_cut(state);
  if (has_fresh && !other.empty()) { // averages of the parts' ratios do not fit other parts
    throw InputError("engine", concat("1-bit LAMB is past its warm-up, and the checkpoint ", other),
                     "Continue with as many tensor ranks, or start from the weights alone with model.init_from.");
  }
  for (size_t i = 0; i < places().size(); ++i) {
    const BucketPlace& place = places()[i];
    const comm::Stretch here = share(place);
    const at::Tensor fresh =
        fresh_.empty() ? torch::zeros({here.count()}, at::TensorOptions(torch::kFloat32).device(place.flat->device()))
                       : fresh_[i]; // a load asks for the shape first
    for_each_part(place, [&](const bucket::Slot& slot, const comm::Stretch& mine) {
      const int64_t begin = mine.begin - (slot.begin - place.layout().begin);
      if (has_fresh) {
        visit("exp_avg_sq_fresh", place.tensor(slot), begin, part(fresh, mine, here.begin));
      }
      if (begin == 0 && other.empty()) {
        visit(name_of_part("lamb_coefficients", place.tensor(slot)), of_part(place.tensor(slot), {coefficients}), 0,
              coefficients_[static_cast<size_t>(place.buffer)].select(0, slot.tensor));
      }
    });
  }
}

} // namespace trireme::compress
