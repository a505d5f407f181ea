// The manifest of a checkpoint: as it comes, and with the hash in front that it should have.
#include "fuzz.h"

#include <trireme/checkpoint/hash.h>
#include <trireme/checkpoint/manifest.h>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

void read(const std::string& text) {
  allow_input_error([&] {
    const auto manifest = checkpoint::Manifest::parse(text, "manifest.json");
    require_no_error("a manifest can be written and read again", [&] {
      const std::string again = manifest.to_text();
      require(checkpoint::Manifest::parse(again, "again").to_text() == again, "written and read again it is the same");
    });
    for (const auto& [name, tensor] : manifest.tensors) {
      const int64_t numel = tensor.numel();
      for (const auto& shard : tensor.shards) {
        require(shard.file < manifest.files.size(), "shards lie in files that are there");
        require(shard.region.end <= numel, "shards are parts of their tensor");
      }
    }
  });
}

} // namespace

/// What follows the line with the hash.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(text_of(data, size));
  read(body);
  read(concat("{\"hash\":\"", checkpoint::hash_of(body.data(), body.size()), "\",\n", body));
  return 0;
}
