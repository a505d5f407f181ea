#pragma once

#include <trireme/comm/backend.h>

namespace trireme::comm {

/// Makes the backend of a group of one: every operation is done at once, nothing is sent.
std::shared_ptr<Backend> make_null_backend();

} // namespace trireme::comm
