#pragma once

#include <trireme/launch/descriptor.h>

#include <string>

namespace trireme::launch {

/// 32 random bytes of the kernel as 64 hexadecimal digits. Errors: Error when the kernel gives none.
std::string random_secret();

/// Keeps a text in memory that is readable only through a descriptor: it is in no file, argument or variable.
/// Each call of open() gives a descriptor with its own reading position. Errors: Error.
class SecretMemory {
 public:
  explicit SecretMemory(const std::string& text);
  Descriptor open() const;

 private:
  Descriptor memory_;
};

} // namespace trireme::launch
