#include "read_prompts.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/engine/same_options.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace trireme::tools {
namespace {

std::vector<std::string> read_here(const GenerateCommand& command) {
  if (command.prompts.empty()) {
    return {command.prompt};
  }
  if (std::error_code ignored; std::filesystem::is_directory(command.prompts, ignored)) {
    throw InputError("generate", concat(command.prompts.string(), " is a folder"),
                     "Give a text file with one prompt on each line.");
  }
  std::ifstream file(command.prompts);
  if (!file) {
    throw InputError("generate", concat("cannot open ", command.prompts.string(), ": ", std::strerror(errno)),
                     "Give a text file with one prompt on each line.");
  }
  std::vector<std::string> prompts;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) { // lines of Windows
      line.pop_back();
    }
    if (line.find_first_not_of(" \t") != std::string::npos) {
      prompts.push_back(line);
    }
  }
  if (!file.eof() || prompts.empty()) {
    throw InputError(
        "generate",
        concat(command.prompts.string(), prompts.empty() ? " has no prompts" : " cannot be read to its end"),
        "Give a text file with one prompt on each line.");
  }
  return prompts;
}

// Texts of any bytes. Collective.
void broadcast(std::vector<std::string>& texts, const comm::Group& ranks) {
  const at::Tensor count = at::full({1}, std::ssize(texts), at::kLong);
  ranks.broadcast(count, 0, "number of prompts").wait();
  texts.resize(static_cast<size_t>(count.item<int64_t>()));
  const at::Tensor sizes = at::empty({std::ssize(texts)}, at::kLong);
  auto* const size = sizes.mutable_data_ptr<int64_t>();
  std::ranges::transform(texts, size, [](const std::string& text) { return std::ssize(text); });
  ranks.broadcast(sizes, 0, "sizes of prompts").wait();
  std::string all = join(texts, "");
  all.resize(static_cast<size_t>(sizes.sum().item<int64_t>()));
  if (!all.empty()) {
    ranks.broadcast(at::from_blob(all.data(), {std::ssize(all)}, at::kByte), 0, "prompts").wait();
  }
  size_t begin = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i] = all.substr(begin, static_cast<size_t>(size[i]));
    begin += texts[i].size();
  }
}

} // namespace

std::vector<std::string> read_prompts(const GenerateCommand& command, const comm::Group& ranks) {
  if (ranks.size() == 1) {
    return read_here(command);
  }
  std::vector<std::string> prompts;
  engine::call_on_first(ranks, [&] { prompts = read_here(command); });
  broadcast(prompts, ranks);
  return prompts;
}

} // namespace trireme::tools
