#include <trireme/precision/autocast.h>

#include <trireme/base/error.h>
#include <trireme/precision/cast.h>

#include <ATen/autocast_mode.h>
#include <torch/utils.h>

#include <algorithm>

namespace trireme::precision {

Autocast::Autocast(Type type, c10::DeviceType device, bool enabled) : device_(device) {
  const auto& devices = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;
  if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
    throw InputError("precision", concat("autocast does not support the device ", device), "Use cpu or cuda.");
  }
  if (enabled && type == Type::fp32) {
    throw InputError("precision", "autocast needs a type lower than fp32", "Choose bf16 or fp16, or remove autocast.");
  }
  enabled_before_ = at::autocast::is_autocast_enabled(device);
  type_before_ = at::autocast::get_autocast_dtype(device);
  cache_before_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_enabled(device, enabled);
  if (enabled) {
    at::autocast::set_autocast_dtype(device, scalar_type(type));
  }
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(true);
}

Autocast::~Autocast() {
  // Drops the cached casts of weights at the end, because an optimizer changes the weights in place.
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, type_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

} // namespace trireme::precision
