#pragma once

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/memory/aio/transfers.h>

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::aio {

inline constexpr int64_t kPage = kAlignment;

/// Bytes that differ from place to place and from seed to seed.
inline void fill_pattern(std::byte* memory, int64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(memory + i, &word, 8);
  }
}

/// The file as a stream of C++ sees it.
inline std::vector<char> plain_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// With each engine, through the page cache and beside it.
class Engines : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  void SetUp() override {
    if (uring() && std::string(Transfers().engine()) != "io_uring") {
      GTEST_SKIP() << "there is no io_uring here";
    }
  }
  static bool uring() { return std::get<0>(GetParam()); }
  static bool direct() { return std::get<1>(GetParam()); }
  File file_of(int64_t bytes, const std::string& name = "file") const {
    return File::create(folder_.path / name, bytes, direct());
  }

  const ScratchFolder folder_{make_scratch_folder("trireme-aio")};
};

inline std::string engine_name(const testing::TestParamInfo<std::tuple<bool, bool>>& info) {
  return concat(std::get<0>(info.param) ? "uring" : "threads", std::get<1>(info.param) ? "_direct" : "_cached");
}

} // namespace trireme::aio
