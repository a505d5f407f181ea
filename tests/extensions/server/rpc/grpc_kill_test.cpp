// Servers and clients killed at random: nobody waits longer than its deadline, every answer is right, and whoever lives
// goes on.
#include <trireme/base/error.h>

#include "tests/extensions/server/rpc/grpc_checks.h"
#include "tests/support/free_port.h"

#include <poll.h>

#include <cstdlib>
#include <random>

namespace trireme::rpc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kDeadline{10};
/// What a call may take beyond its deadline, on a machine that is busy.
constexpr seconds kSlack{20};

/// Asks for ever; writes '.' for an answer, 'x' for a broken connection, 'W' for a wrong answer, 'L' for a late error,
/// 'E' for any other error.
[[noreturn]] void ask_for_ever(const std::string& address, int report, unsigned seed) {
  std::mt19937 random(seed);
  const auto say = [&](char what) {
    if (::write(report, &what, 1) != 1) {
      ::_exit(0);
    }
  };
  while (true) {
    try {
      const auto client = connect(address, test::kAccess, Clock::now() + kDeadline);
      while (true) {
        const std::vector<std::byte> body(random() % 2 == 0 ? random() % 1000 : random() % (size_t{3} << 20),
                                          static_cast<std::byte>(random()));
        std::vector<std::byte> room(body.size());
        const auto deadline = Clock::now() + kDeadline;
        const auto call = client->call("{}", body, room);
        try {
          say(call->wait(deadline) == "echo {}" && room == body ? '.' : 'W');
        } catch (const PeerError&) {
          say(Clock::now() < deadline + kSlack ? 'x' : 'L');
          break;
        }
      }
    } catch (const PeerError&) { // no server at the moment
    } catch (const std::exception&) {
      say('E');
    }
  }
}

struct Asker {
  int ends[2] = {-1, -1};
  std::unique_ptr<test::Child> child;
};

class GrpcKillTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_not_grpc(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    address_ = concat("grpc://127.0.0.1:", test::free_port());
    for (auto& asker : askers_) {
      ASSERT_EQ(::pipe(asker.ends), 0);
    }
  }
  void serve() {
    server_ = nullptr;
    server_ = std::make_unique<test::Child>([this] {
      while (true) {
        try {
          test::echo_for_ever(address_);
        } catch (const InputError&) { // the port of the one before is not free yet
          std::this_thread::sleep_for(milliseconds(5));
        }
      }
    });
  }
  void ask(size_t which) {
    auto& asker = askers_[which];
    asker.child = nullptr;
    asker.child = std::make_unique<test::Child>(
        [&, seed = static_cast<unsigned>(random_())] { ask_for_ever(address_, asker.ends[1], seed); });
  }
  /// Reads until this asker has had so many answers. Returns all that it said; "" when that took too long.
  std::string answers(size_t which, int count) {
    std::string said;
    const auto deadline = Clock::now() + seconds(120);
    while (count > 0 && Clock::now() < deadline) {
      pollfd waiting{askers_[which].ends[0], POLLIN, 0};
      char what = 0;
      if (::poll(&waiting, 1, 100) > 0 && ::read(askers_[which].ends[0], &what, 1) == 1) {
        said += what;
        count -= what == '.' ? 1 : 0;
      }
    }
    return count > 0 ? "" : said;
  }

  std::string address_;
  std::mt19937 random_{20261125};
  std::unique_ptr<test::Child> server_;
  std::array<Asker, 3> askers_;
};

TEST_F(GrpcKillTest, NothingHangsWhoeverIsKilled) {
  serve();
  for (size_t i = 0; i < askers_.size(); ++i) {
    ask(i);
  }
  const int rounds = std::getenv("TRIREME_LONG_TESTS") != nullptr ? 300 : 15;
  int broken = 0;
  for (int round = 0; round < rounds; ++round) {
    const size_t victim = random_() % (askers_.size() + 1);
    std::this_thread::sleep_for(milliseconds(random_() % 30)); // at any point of what they do
    if (victim == askers_.size()) {
      serve();
    } else {
      ask(victim);
    }
    for (size_t i = 0; i < askers_.size(); ++i) {
      const std::string said = answers(i, 20);
      ASSERT_NE(said, "") << "asker " << i << " gets no answers in round " << round;
      ASSERT_EQ(said.find_first_of("WLE"), std::string::npos) << said;
      broken += static_cast<int>(std::count(said.begin(), said.end(), 'x'));
    }
  }
  EXPECT_GT(broken, 0) << "no server was ever killed while somebody asked";
}

} // namespace
} // namespace trireme::rpc
