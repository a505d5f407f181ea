#include <trireme/generate/base_values.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <ATen/ops/empty_like.h>

#include <memory>
#include <utility>

namespace trireme::generate {

void BaseValues::open() {
  if (auto first = models::checkpoint_in(from_)) {
    read_ = [first = std::make_shared<const checkpoint::Checkpoint>(std::move(*first))](
                const std::string& name, const at::Tensor& value) { models::load_parameter(*first, name, value); };
    return;
  }
  const auto files = std::make_shared<const checkpoint::WeightFiles>(models::plain_weights(from_));
  read_ = [this, files](const std::string& name, const at::Tensor& value) {
    models::load_parameter(family_, name, value, *files, from_);
  };
}

void BaseValues::put_back(const std::string& name, const at::Tensor& value) {
  const std::string& dtype = saved_.entry(name).dtype;
  const bool is_rounded = dtype == "BF16" || dtype == "F16";
  if (from_.empty() || !is_rounded || saved_.has(concat("master/", name))) {
    return;
  }
  if (!read_) {
    try {
      open();
    } catch (const Error& error) {
      log::info("What was not trained stays rounded to ", dtype, ", because the model that the run began with cannot ",
                "be read: ", error.what());
      from_.clear();
      return;
    }
  }
  const at::Tensor first = at::empty_like(value);
  try {
    read_(name, first);
  } catch (const InputError&) { // another model is there now, or this parameter is new
    return;
  }
  const at::ScalarType type = dtype == "BF16" ? at::kBFloat16 : at::kHalf;
  if (first.to(type).to(at::kFloat).equal(value)) {
    value.copy_(first);
  }
}

} // namespace trireme::generate
