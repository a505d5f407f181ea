#pragma once

#include <trireme/launch/descriptor.h>

#include <string>

namespace trireme::launch {

/// 32 bytes of the kernel's randomness as 64 hexadecimal digits. Errors: Error when the kernel gives none.
std::string random_secret();

/// The text in memory that only who holds this descriptor can read; no file, no argument, no variable.
/// Each call gives a descriptor with a reading position of its own. Errors: Error.
class SecretMemory {
 public:
  explicit SecretMemory(const std::string& text);
  Descriptor open() const;

 private:
  Descriptor memory_;
};

} // namespace trireme::launch
