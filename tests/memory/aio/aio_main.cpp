// `aio_program FOLDER io_uring|threads|none direct|cached`: makes a file, writes, reads and compares a few transfers
// (none: none), for tests that let its system calls fail. Prints "direct" or "cached" as the file was opened, "ENGINE
// ok" at the end, and each error. Status 0: all went well; 1: errors were told; 3: bytes are wrong.
#include <trireme/base/error.h>
#include <trireme/memory/aio/transfers.h>

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace trireme;

constexpr int64_t kBlock = 4 * aio::kAlignment;
constexpr int64_t kPieces = 3;
constexpr int64_t kPiece = 3 * kBlock; // of three requests each
constexpr int64_t kBytes = kPieces * kPiece;

void say(const std::string& line) {
  if (::write(1, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    ::_exit(4);
  }
}

bool goes_well(aio::Transfers& transfers, aio::Transfers::Id id) {
  try {
    transfers.wait(id);
    return true;
  } catch (const Error& error) {
    say(concat(error.what(), "\n"));
    return false;
  }
}

int run(const std::string& folder, const std::string& engine, bool direct) {
  const auto path = std::filesystem::path(folder) / "file";
  aio::File::create(path, kBytes, direct);
  const aio::File file = aio::File::open(path, direct);
  say(file.direct() ? "direct\n" : "cached\n");
  if (engine == "none") {
    return 0;
  }
  aio::Memory there(kBytes);
  aio::Memory back(kBytes);
  for (int64_t i = 0; i < kBytes; ++i) {
    there.data()[i] = static_cast<std::byte>(i * 7 + i / 1000);
  }
  aio::Transfers transfers({kBlock, 4, 1}, engine == "io_uring");
  transfers.add_buffer(back.data(), back.size());
  std::vector<aio::Transfers::Id> ids;
  for (int64_t i = 0; i < kPieces; ++i) {
    ids.push_back(transfers.write(file, i * kPiece, there.data() + i * kPiece, kPiece));
  }
  std::vector<bool> written;
  for (const auto id : ids) {
    written.push_back(goes_well(transfers, id));
  }
  ids.clear();
  for (int64_t i = 0; i < kPieces; ++i) {
    ids.push_back(transfers.read(file, i * kPiece, back.data() + i * kPiece, kPiece));
  }
  bool all = true;
  for (int64_t i = 0; i < kPieces; ++i) {
    const bool is_there = goes_well(transfers, ids[static_cast<size_t>(i)]) && written[static_cast<size_t>(i)];
    all = all && is_there;
    if (is_there && std::memcmp(there.data() + i * kPiece, back.data() + i * kPiece, kPiece) != 0) {
      say("WRONG BYTES\n");
      return 3;
    }
  }
  file.sync();
  say(concat(transfers.engine(), all ? " ok\n" : " not all\n"));
  return all ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    return 2;
  }
  try {
    return run(argv[1], argv[2], std::string(argv[3]) == "direct");
  } catch (const Error& error) {
    say(concat(error.what(), "\n"));
    return error.exit_code();
  }
}
