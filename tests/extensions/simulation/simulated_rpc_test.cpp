#include <tests/extensions/simulation/simulated_rpc.h>

#include <tests/simulation/schedules.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

namespace trireme::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SimulatedRpcTest, RequestsAreAnsweredAndAServerThatDiesIsFoundAgain) {
  run_schedules(200, [](Simulator& simulator) {
    SimulatedRpc rpc(simulator);
    const auto serve = [] {
      const auto server = rpc::serve("sim://doubles", {});
      for (const auto end = Clock::now() + seconds(20); Clock::now() < end;) {
        if (const auto event = server->next(milliseconds(50)); event && event->kind == rpc::Event::Kind::request) {
          event->room[0] = static_cast<std::byte>(2 * static_cast<int>(event->body[0]));
          server->reply(event->id, event->header);
        }
      }
    };
    const int first = simulator.start("server", serve);
    int answers = 0;
    simulator.start("client", [&] {
      std::unique_ptr<rpc::Client> client;
      for (int i = 0; i < 40;) {
        try {
          if (!client) {
            client = rpc::connect("sim://doubles", {}, Clock::now() + seconds(10));
          }
          const std::byte body{static_cast<unsigned char>(i)};
          std::byte room{};
          const auto call = client->call(std::to_string(i), {&body, 1}, {&room, 1});
          if (call->wait(Clock::now() + seconds(5)) != std::to_string(i) || static_cast<int>(room) != 2 * i) {
            simulator.violate("a wrong answer");
          }
          ++answers;
          ++i;
        } catch (const Killed&) {
          throw;
        } catch (const PeerError&) {
          client.reset();
        }
      }
    });
    simulator.after(milliseconds(15), [&] {
      simulator.kill(first);
      simulator.start("its successor", serve, milliseconds(300));
    });
    if (!simulator.run(seconds(60)) || answers != 40) {
      simulator.violate(concat(answers, " of 40 answers"));
    }
  });
}

} // namespace
} // namespace trireme::simulation
