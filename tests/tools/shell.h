#pragma once

#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::tools {

/// The program under test, as a word of a shell command.
inline const std::string kTrireme = "\"" + test::binary_dir() + "/bin/trireme\"";

struct Finished {
  int status = -1;    ///< exit status, or 128 + signal
  std::string output; ///< stdout and stderr
};

/// Runs a shell command to its end; killed after `seconds`.
inline Finished sh(const std::string& command, int seconds = 120) {
  FILE* pipe = ::popen(concat("timeout -k 5 ", seconds, " sh -c '", command, "' 2>&1").c_str(), "r");
  Finished finished;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    finished.output.append(buffer.data(), n);
  }
  const int status = ::pclose(pipe);
  finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

/// A folder with a tiny data set and a run file on it.
class RunFolder : public testing::Test {
 protected:
  explicit RunFolder(const std::filesystem::path& parent = testing::TempDir())
      : folder(parent / concat("trireme_tools_", ::getpid())) {
    std::filesystem::create_directories(folder);
    std::vector<uint16_t> tokens; // counting with strides: something a model learns in a few steps
    for (int i = 0; i < 6000; ++i) {
      tokens.push_back(static_cast<uint16_t>((i * (1 + i / 600)) % 50));
    }
    write_tokens("tokens.bin", tokens);
    write_run("run.json",
              R"({"type": "gpt", "layers": 2, "hidden": 32, "heads": 2, "sequence_length": 16, "vocab_size": 50})");
  }
  ~RunFolder() override { std::filesystem::remove_all(folder); }

  void write_tokens(const std::string& name, const std::vector<uint16_t>& tokens) {
    write_file_atomically(folder / name, std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2));
  }
  void write_run(const std::string& name, const std::string& model, const std::string& data_file = "tokens.bin") {
    write_file_atomically(folder / name, concat(R"({"model": )", model, R"(,
  "data": {"type": "tokens", "train": [")",
                                                data_file, R"("], "shuffle": true},
  "training": {"steps": 30, "checkpoint_every": 5},
  "engine": {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}})"));
  }
  // Tensor bytes of a rank's part of a checkpoint; the headers differ by the identity of the save.
  static std::string tensor_bytes_of_one(const std::filesystem::path& checkpoint, int rank = 0) {
    const std::string file = read_file(checkpoint / concat("rank0000", rank, ".safetensors"));
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    return file.substr(8 + header);
  }
  // Of two ranks.
  static std::string tensor_bytes(const std::filesystem::path& checkpoint) {
    std::string bytes = tensor_bytes_of_one(checkpoint, 0) + tensor_bytes_of_one(checkpoint, 1);
    EXPECT_GT(bytes.size(), 100'000u);
    return bytes;
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  // " --set path=value" as a word within single quotes, as sh() has it.
  static std::string with(const std::string& path_and_value) {
    std::string quoted;
    for (const char c : path_and_value) {
      quoted += c == '"' ? concat('\\', c) : std::string(1, c);
    }
    return concat(" --set \"", quoted, '"');
  }
  Finished train(const std::string& rest, int seconds = 120) const {
    return sh(concat(kTrireme, " train ", path("run.json"), " --out ", path("out"), ' ', rest), seconds);
  }

  std::filesystem::path folder;
};

} // namespace trireme::tools
