#include <trireme/extensions/compress/compressed_sync.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/optim/shard_check.h>

#include <torch/types.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace trireme::compress {

CompressedSync::CompressedSync(std::unique_ptr<parallel::AllReduceSync> plain, comm::Group everyone, std::string name)
    : GradientSync(plain->groups()), plain_(std::move(plain)), everyone_(std::move(everyone)), name_(std::move(name)) {}

void CompressedSync::attach(const std::vector<bucket::FlatParameters*>& buffers) {
  plain_->attach(buffers);
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (int64_t b = 0; b < std::ssize(buffers[i]->layout().buckets()); ++b) {
      places_.push_back({buffers[i], static_cast<int64_t>(i), b, groups().of(*buffers[i])});
      means_.push_back(make_mean(places_.back()));
    }
  }
  numbers_.resize(places_.size());
  // Takes the maximum over all ranks: tensor ranks may have parts of different sizes, and stages other layers. All
  // ranks must decide alike when they load.
  const at::Tensor cut = torch::full({1}, most_divided(), torch::kInt64);
  everyone_.all_reduce(cut, comm::ReduceOp::max, "parts of parameters").wait();
  cut_ = cut.item<int64_t>();
}

int64_t CompressedSync::most_divided() const {
  int64_t cut = 1;
  for (const BucketPlace& place : places_) {
    place.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch&) {
      const bucket::TensorInfo& tensor = place.tensor(slot);
      cut = std::max(cut, tensor.numel() > 0 ? c10::multiply_integers(tensor.global_shape()) / tensor.numel() : 1);
    });
  }
  return cut;
}

comm::Work CompressedSync::gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) {
  if (!compresses()) {
    return plain_->gradients_ready(buffer, bucket);
  }
  plain_->apply_pre_scale(buffer, bucket); // keeps scale() valid in all steps
  return {};
}

comm::Stretch CompressedSync::owned(const BucketPlace& place) const {
  if (!is_sharded(place)) {
    return {0, place.numel()};
  }
  const bucket::Range mine = place.flat->plan().mine(place.bucket);
  return {mine.begin - place.layout().begin, mine.end - place.layout().begin};
}

at::Tensor CompressedSync::gathered(const BucketPlace& place, const at::Tensor& own) const {
  const at::Tensor all = torch::empty({place.numel()}, own.options());
  place.ranks.all_gather(all, own, "states of a bucket").wait();
  return all;
}

at::Tensor CompressedSync::own_gradient(const BucketPlace& place, double factor) const {
  const at::Tensor gradient = place.flat->owned_grad(place.bucket, {place.layout().begin, place.layout().end});
  const double whole = gradient_factor(place, factor);
  return gradient.scalar_type() == torch::kFloat32 ? gradient.mul(whole) : gradient.to(torch::kFloat32).mul_(whole);
}

kernels::MomentumArgs CompressedSync::gradient_args(const BucketPlace& place, double factor) const {
  const at::Tensor gradient = place.flat->owned_grad(place.bucket, {place.layout().begin, place.layout().end});
  kernels::MomentumArgs args;
  args.grad = gradient.const_data_ptr();
  args.grad_type = optim::element_of(gradient.scalar_type());
  args.grad_scale = static_cast<float>(gradient_factor(place, factor));
  return args;
}

comm::AddNumbers CompressedSync::adder(const kernels::MomentumArgs& args) {
  return
      [args](int64_t begin, int64_t end, float* to) { kernels::active_kernels().add_momentum(args, begin, end, to); };
}

at::Tensor CompressedSync::finished(size_t number, const uint8_t* exponents) const {
  const at::Tensor all = torch::zeros({places_[number].numel()}, torch::kFloat32);
  auto* const to = all.mutable_data_ptr<float>();
  means_[number]->finish([&](int64_t begin, int64_t end, float* means) {
    if (exponents != nullptr) {
      kernels::active_kernels().scale_by_powers(exponents + begin, end - begin, false, means);
    }
    std::copy_n(means, end - begin, to + begin);
  });
  return all;
}

void CompressedSync::start(size_t number) {
  const BucketPlace& place = places_[number];
  const auto left_out = [&](int64_t parameter) { return is_left_out(place, parameter); };
  if (!start_by_stretches(number, left_out)) {
    numbers_[number] = numbers_of(number);
    means_[number]->start(numbers_[number], left_out);
  }
}

// Overlaps each half of a round: the first with compressing the next bucket, the second with the step of the bucket
// before.
void CompressedSync::exchange_until(size_t finished) {
  const torch::NoGradGuard no_grad;
  while (finished_ < finished) {
    while (turned_ < std::min(finished_ + 2, places_.size())) {
      while (started_ < std::min(turned_ + 2, places_.size())) {
        start(started_++);
      }
      means_[turned_++]->turn();
    }
    if (at::Tensor numbers = std::exchange(numbers_[finished_], at::Tensor()); numbers.defined()) {
      means_[finished_]->finish();
      take(finished_, numbers);
    } else {
      take_by_stretches(finished_);
    }
    ++finished_;
  }
}

void CompressedSync::exchange_all() {
  started_ = turned_ = finished_ = 0;
  exchange_until(places_.size());
}

void CompressedSync::begin_step() {
  started_ = turned_ = finished_ = 0;
  if (compresses()) {
    const torch::NoGradGuard no_grad;
    before_exchange();
    if (values_->needs_norms()) {
      exchange_all();
    }
  }
}

void CompressedSync::step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) {
  if (compresses()) {
    const auto found = std::find_if(places_.begin(), places_.end(), [&](const BucketPlace& one) {
      return one.flat == &buffer && one.bucket == bucket;
    });
    const auto number = static_cast<size_t>(found - places_.begin());
    exchange_until(number + 1);
  }
  plain_->step_exchange().step_bucket(buffer, bucket, step);
}

bool CompressedSync::end_step(bool taken) {
  const bool changed = plain_->step_exchange().end_step(taken);
  if (taken && compresses() && !std::exchange(reported_, true)) {
    report();
  }
  const torch::NoGradGuard no_grad;
  step_ended(taken);
  return changed;
}

double CompressedSync::plain_bytes(const BucketPlace& place) const {
  const int ranks = place.ranks.size();
  const auto bytes =
      static_cast<double>(place.numel() * static_cast<int64_t>(c10::elementSize(plain_->travel(*place.flat))));
  return (is_sharded(place) ? 1 : 2) * bytes * (ranks - 1) / ranks;
}

// Makes it visible in the log that gradients are compressed at all.
void CompressedSync::report() const {
  double plain = 0;
  int64_t sent = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    plain += plain_bytes(places_[i]);
    sent += means_[i]->sent();
  }
  if (sent > 0) {
    log_first(concat("a rank sent ", sent, " bytes, compressed, in step ", values_->steps(), " where gradients take ",
                     static_cast<int64_t>(plain), ", ",
                     static_cast<double>(static_cast<int64_t>(10 * plain / static_cast<double>(sent))) / 10,
                     " times as many"));
  }
}

void CompressedSync::log_first(const std::string& line) const {
  if (everyone_.rank() == 0) {
    log::info(name_, ": ", line);
  }
}

// With split sequences, parameters that are whole on tensor ranks are summed among more ranks than split ones.
nlohmann::json CompressedSync::layout() const {
  std::set<int> sizes;
  for (const comm::Group& ranks : groups().all()) {
    sizes.insert(ranks.size());
  }
  return {{"ranks", group().size()}, {"groups", sizes}, {"cut", cut_}};
}

std::string CompressedSync::other_layout(const nlohmann::json& state, bool cut) const {
  const nlohmann::json own = layout();
  if (state.at("ranks") != own.at("ranks")) {
    return concat("is from ", state.at("ranks").get<int64_t>(), " data ranks, this run has ", group().size());
  }
  // State saved before "groups" existed: all ranks of a group other than the data group had errors only without tensor
  // ranks.
  const bool is_old = !state.contains("groups");
  const nlohmann::json groups =
      is_old && own.at("cut") == 1 ? own.at("groups") : state.value("groups", nlohmann::json::array({own.at("ranks")}));
  const auto sizes = [](const nlohmann::json& of) {
    std::string text;
    for (const nlohmann::json& one : of) {
      text += concat(text.empty() ? "" : " and ", one.get<int64_t>());
    }
    return text;
  };
  if (groups != own.at("groups")) {
    return concat("is from a run that summed gradients over ", sizes(groups), " ranks, this one sums over ",
                  sizes(own.at("groups")));
  }
  return cut ? other_cut(state) : "";
}

std::string CompressedSync::other_cut(const nlohmann::json& state) const {
  const auto own = layout().at("cut").get<int64_t>();
  const int64_t theirs = state.value("cut", own);
  return theirs == own
             ? ""
             : concat("is from ", theirs, theirs == 1 ? " tensor rank" : " tensor ranks", ", this run has ", own);
}

void CompressedSync::forget_errors() {
  for (const auto& mean : means_) {
    mean->forget_errors();
  }
}

} // namespace trireme::compress
