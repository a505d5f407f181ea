#include <trireme/extensions/horovod/optimizer_bytes.h>

#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <sstream>

namespace trireme::horovod {

std::string bytes_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  return stream.str();
}

void load_bytes(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream,
                    optimizer.param_groups().front().params().front().device()); // saved ones may be on another device
  optimizer.state().clear(); // removes states that the saved optimizer lacks
  optimizer.load(archive);
}

} // namespace trireme::horovod
