#pragma once

#include <trireme/comm/store.h>
#include <trireme/store/client.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

namespace trireme::comm {

/// One connection, shared by Stores. Takes full keys and may throw any exception.
struct Store::Handle {
  virtual ~Handle() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::vector<std::optional<std::string>> find_all(const std::vector<std::string>& keys) = 0;
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  virtual bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  virtual bool last_will(const std::string& key, const std::string& value, const std::string& counter) = 0;
  /// The same store for c10d's process groups.
  virtual c10::intrusive_ptr<c10d::Store> for_c10d() = 0;
};

/// A handle for trireme's own store.
std::shared_ptr<Store::Handle> handle_of(std::shared_ptr<store::Client> client);
/// A handle for the store of torchrun's agent.
std::shared_ptr<Store::Handle> handle_of(c10::intrusive_ptr<c10d::Store> store);

/// The text of any exception without c10's stack trace.
std::string plain_text(const std::exception& error);

} // namespace trireme::comm
