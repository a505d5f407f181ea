#include <trireme/extensions/compress/gradient_compression_sync.h>

#include <trireme/base/error.h>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace trireme::compress {
namespace {

constexpr const char* kGradientCompression = "gradient_compression";

} // namespace

GradientCompressionSync::GradientCompressionSync(std::unique_ptr<parallel::AllReduceSync> plain,
                                                 const GradientCompressionOptions& options, comm::Group everyone)
    : CompressedSync(std::move(plain), std::move(everyone), "gradient compression"), options_(options) {}

std::unique_ptr<BucketMean> GradientCompressionSync::make_mean(const BucketPlace& place) const {
  return mean_of(place, options_);
}

at::Tensor GradientCompressionSync::numbers_of(size_t number) {
  return own_gradient(places()[number]);
}

void GradientCompressionSync::take(size_t number, const at::Tensor& mean) {
  values().give_gradient(places()[number].buffer, places()[number].bucket, mean);
}

bool GradientCompressionSync::start_by_stretches(size_t number, const BucketMean::LeftOut& left_out) {
  if (!mean(number).by_stretches()) {
    return false;
  }
  mean(number).start(adder(gradient_args(places()[number])), left_out);
  return true;
}

void GradientCompressionSync::step_ended(bool) {
  ++steps_;
}

// "rank" is saved because PowerSGD's matrices have it in their shape.
nlohmann::json GradientCompressionSync::state() const {
  using Kind = GradientCompressionOptions::Kind;
  nlohmann::json state = layout();
  state.update({{"kind", kGradientCompression},
                {"by", GradientCompressionOptions::name(options_.kind)},
                {"rank", options_.kind == Kind::power_sgd ? options_.rank : 0},
                {"begun", compresses()}});
  return state;
}

bool GradientCompressionSync::fits(const nlohmann::json& state) const {
  if (!state.is_object() || state.value("kind", "") != kGradientCompression || !state.at("begun").get<bool>()) {
    return false;
  }
  const nlohmann::json own = GradientCompressionSync::state();
  return state.at("by") == own.at("by") && state.at("rank") == own.at("rank") &&
         other_layout(state, options_.kind == GradientCompressionOptions::Kind::power_sgd).empty();
}

void GradientCompressionSync::load_state(const nlohmann::json& state, int64_t steps) {
  steps_ = steps;
  forget_errors();
  if (state.is_object() && state.value("kind", "") == kGradientCompression && state.at("begun").get<bool>() &&
      !fits(state)) {
    const auto ranks = state.at("ranks").get<int64_t>();
    const std::string other = ranks == group().size() ? other_layout(state, true) : "";
    log_first(concat("the checkpoint ",
                     other.empty() ? concat("is from ", ranks, " data ranks that compressed by ",
                                            state.at("by").get<std::string>(), ", this run has ", group().size(),
                                            " and ", GradientCompressionOptions::name(options_.kind))
                                   : other,
                     "; the errors of compression begin at zero"));
  }
}

void GradientCompressionSync::for_each_state(const nlohmann::json& state, const Visit& visit) {
  if (fits(state)) {
    for (size_t i = 0; i < places().size(); ++i) {
      mean(i).for_each_state(visit);
    }
  }
}

} // namespace trireme::compress
