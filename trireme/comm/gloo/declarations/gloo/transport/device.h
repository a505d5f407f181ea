#pragma once

#include <memory>

namespace gloo::transport {

class Device;

} // namespace gloo::transport
