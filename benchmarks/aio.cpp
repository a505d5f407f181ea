// Transfers of one file that is there: `benchmark_aio FILE BYTES BLOCK_SIZE QUEUE_DEPTH [threads]` writes all of it,
// then reads it, in pieces of 64 MiB of which three have memory at a time. "small" instead of a number of threads: by
// io_uring, without huge pages. "mix" and a share from 0 to 1: by io_uring, so much of the bytes read and the rest
// written, in turns. One line of JSON: engine, direct, GB/s (1e9 bytes), seconds of the processor a GB. With BYTES 0
// and a size as BLOCK_SIZE it makes the file and fills it.
#include <trireme/base/error.h>
#include <trireme/memory/aio/transfers.h>

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

namespace {

using namespace trireme;

constexpr int64_t kPiece = int64_t{64} << 20;

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Rate {
  double gb_per_s;
  double processor_s_per_gb;
};

class Pieces {
 public:
  explicit Pieces(aio::Transfers& transfers) : transfers_(transfers) {
    std::mt19937_64 random(1);
    for (aio::Memory& memory : memory_) {
      memory = aio::Memory(kPiece);
      for (int64_t i = 0; i < kPiece; i += 8) {
        const uint64_t word = random();
        std::memcpy(memory.data() + i, &word, 8);
      }
      transfers_.add_buffer(memory.data(), kPiece);
    }
  }
  // A piece is read or written, as it brings what was read so far nearer to its share.
  Rate run(const aio::File& file, int64_t bytes, double share_read) {
    const auto start = std::chrono::steady_clock::now();
    const double processor = processor_seconds();
    std::array<aio::Transfers::Id, 3> ids{};
    size_t place = 0;
    double owed = 0; // bytes to be read
    for (int64_t begin = 0; begin < bytes; begin += kPiece, place = (place + 1) % ids.size()) {
      wait(ids[place]);
      const int64_t length = std::min(kPiece, bytes - begin);
      std::byte* memory = memory_[place].data();
      owed += share_read * static_cast<double>(length);
      const bool reads = owed >= static_cast<double>(length) / 2;
      owed -= reads ? static_cast<double>(length) : 0;
      ids[place] = reads ? transfers_.read(file, begin, memory, length) : transfers_.write(file, begin, memory, length);
    }
    for (const auto id : ids) {
      wait(id);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double gb = static_cast<double>(bytes) / 1e9;
    return {gb / seconds, (processor_seconds() - processor) / gb};
  }

 private:
  void wait(aio::Transfers::Id id) {
    if (id != 0) {
      transfers_.wait(id);
    }
  }
  aio::Transfers& transfers_;
  std::array<aio::Memory, 3> memory_;
};

int run(int argc, char** argv) {
  const int64_t bytes = std::atoll(argv[2]);
  if (bytes == 0) {
    const aio::File file = aio::File::create(argv[1], std::atoll(argv[3]));
    aio::Transfers transfers;
    Pieces(transfers).run(file, file.size(), 0);
    return 0;
  }
  const aio::File file = aio::File::open(argv[1]);
  aio::Options options;
  options.block_size = std::atoll(argv[3]);
  options.queue_depth = std::atoll(argv[4]);
  const std::string how = argc > 5 ? argv[5] : "";
  const bool small_pages = how == "small";
  const bool mixed = how == "mix";
  if (small_pages && ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) {
    throw Error("aio", "this system cannot leave out huge pages");
  }
  const bool by_uring = how.empty() || small_pages || mixed;
  options.threads = by_uring ? 1 : std::atoll(argv[5]);
  aio::Transfers transfers(options, by_uring);
  Pieces pieces(transfers);
  if (mixed) {
    const Rate both = pieces.run(file, bytes, std::atof(argv[6]));
    std::printf("{\"engine\": \"%s\", \"direct\": %s, \"gb_per_s\": %.4f, \"cpu_s_per_gb\": %.4f}\n",
                transfers.engine(), file.direct() ? "true" : "false", both.gb_per_s, both.processor_s_per_gb);
    return 0;
  }
  const Rate write = pieces.run(file, bytes, 0);
  const Rate read = pieces.run(file, bytes, 1);
  std::printf(
      "{\"engine\": \"%s\", \"direct\": %s, \"write_gb_per_s\": %.4f, \"read_gb_per_s\": %.4f, \"write_cpu_s_per_gb\": "
      "%.4f, \"read_cpu_s_per_gb\": %.4f}\n",
      transfers.engine(), file.direct() ? "true" : "false", write.gb_per_s, read.gb_per_s, write.processor_s_per_gb,
      read.processor_s_per_gb);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4 || (std::atoll(argv[2]) != 0 && argc < 5) ||
      (argc > 5 && std::strcmp(argv[5], "mix") == 0 && argc < 7)) {
    std::fprintf(stderr,
                 "benchmark_aio FILE BYTES BLOCK_SIZE QUEUE_DEPTH [threads|small|mix SHARE_READ], or FILE 0 SIZE\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
