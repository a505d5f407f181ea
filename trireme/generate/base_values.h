#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/huggingface_weights.h>

#include <filesystem>
#include <string>

namespace trireme::generate {

/// What a run in bf16 or fp16 has rounded though it never trained it: frozen parameters have no fp32 masters, but the
/// model that the run began with has their values.
class BaseValues {
 public:
  /// `from`: what the run began with; empty: nothing. It is opened when it is needed. `saved` and `family` must outlive
  /// these values.
  BaseValues(const checkpoint::Checkpoint& saved, std::filesystem::path from, const models::HuggingFaceFamily& family)
      : saved_(saved), from_(std::move(from)), family_(family) {}

  /// Puts the first model's values into `value`, the full parameter in fp32 as `saved` has it, if they become the same
  /// when rounded as in `saved`. Otherwise it stays; that the first model cannot be read is one note in the log. Cost:
  /// one read of that parameter, if it has no master.
  void put_back(const std::string& name, const at::Tensor& value);

 private:
  void open();

  const checkpoint::Checkpoint& saved_;
  std::filesystem::path from_; // empty: there is nothing to read
  const models::HuggingFaceFamily& family_;
  models::FillParameter read_;
};

} // namespace trireme::generate
