#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace trireme::recompute {

/// Handles the tensors that autograd saves from forward to backward, on threads where a SavingScope names it.
class Saver {
 public:
  virtual ~Saver() = default;
  /// Makes the hooks of one saved tensor. call_pack_hook() takes it immediately; call_unpack_hook() returns it in
  /// backward, on any thread. Hooks may outlive the Saver. Autograd does not check hooked tensors for in-place changes:
  /// the hooks must.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> save() = 0;
};

/// Passes every tensor that autograd saves on this thread to `saver`; with nullptr autograd keeps them. Scopes nest.
///
/// libtorch has default hooks for Python only. The first scope with a saver replaces its engine by one that asks the
/// thread's Saver. Without a scope, saving costs one read of a thread-local variable. Errors: Error if the process has
/// an engine other than libtorch's (Python's).
class SavingScope {
 public:
  explicit SavingScope(Saver* saver);
  ~SavingScope();
  SavingScope(const SavingScope&) = delete;
  SavingScope& operator=(const SavingScope&) = delete;

 private:
  Saver* before_;
};

} // namespace trireme::recompute
