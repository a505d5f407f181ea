#pragma once

#include <trireme/comm/store.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme::comm {

/// What is behind a Store, for the files that talk to c10d themselves.
struct Store::Handle {
  c10::intrusive_ptr<c10d::Store> store;
};

/// The text of any exception without c10's stack trace.
std::string plain_text(const std::exception& error);

} // namespace trireme::comm
