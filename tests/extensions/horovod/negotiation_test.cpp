// Which operations are ready, in which order, and who is missing: without ranks.
#include <trireme/extensions/horovod/negotiation.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::horovod {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace std::chrono_literals;

Request request_of(const std::string& name, Shape shape = {3}) {
  Request request;
  request.name = name;
  request.shapes = {std::move(shape)};
  return request;
}

Request join() {
  Request request;
  request.kind = Kind::join;
  request.name = "join";
  return request;
}

std::vector<std::string> names(const std::vector<Response>& responses) {
  std::vector<std::string> names;
  for (const Response& response : responses) {
    names.push_back(response.name);
  }
  return names;
}

TEST(NegotiationTest, IsReadyWhenAllRanksHaveAskedInTheOrderOfAsking) {
  Negotiation negotiation(3);
  negotiation.add(0, request_of("b"));
  negotiation.add(0, request_of("a"));
  negotiation.add(1, request_of("a"));
  negotiation.add(1, request_of("b"));
  EXPECT_THAT(negotiation.take_ready(), IsEmpty());
  negotiation.add(2, request_of("a"));
  EXPECT_THAT(names(negotiation.take_ready()), ElementsAre("a"));
  negotiation.add(2, request_of("b"));
  negotiation.add(0, request_of("c"));
  negotiation.add(1, request_of("c"));
  negotiation.add(2, request_of("c"));
  EXPECT_THAT(names(negotiation.take_ready()), ElementsAre("b", "c"));
  EXPECT_THAT(negotiation.take_ready(), IsEmpty());
}

TEST(NegotiationTest, SaysWhatDiffersAndOnWhichRanks) {
  const auto error_of = [](const Request& a, const Request& b) {
    Negotiation negotiation(2);
    negotiation.add(0, a);
    negotiation.add(1, b);
    return negotiation.take_ready().at(0).error;
  };
  EXPECT_EQ(error_of(request_of("x"), request_of("x")), "");
  EXPECT_EQ(error_of(request_of("x", {2, 3}), request_of("x", {2, 4})),
            "the shape of \"x\" is [2, 3] on rank 0 and [2, 4] on rank 1");
  Request other = request_of("x");
  other.type = c10::ScalarType::Half;
  EXPECT_EQ(error_of(request_of("x"), other), "the type of \"x\" is Float on rank 0 and Half on rank 1");
  other = request_of("x");
  other.op = Op::sum;
  EXPECT_EQ(error_of(request_of("x"), other), "the op of \"x\" is Average on rank 0 and Sum on rank 1");
  other = request_of("x");
  other.kind = Kind::allgather;
  EXPECT_EQ(error_of(request_of("x"), other), "the operation of \"x\" is allreduce on rank 0 and allgather on rank 1");
  Request rows = other;
  rows.shapes = {{7}};
  EXPECT_EQ(error_of(other, rows), "") << "the first dim may differ";
  other.kind = rows.kind = Kind::broadcast;
  rows.shapes = other.shapes;
  rows.root = 1;
  EXPECT_EQ(error_of(other, rows), "the root rank of \"x\" is 0 on rank 0 and 1 on rank 1");
}

TEST(NegotiationTest, GoesOnWithoutRanksThatHaveJoined) {
  Negotiation negotiation(3);
  negotiation.add(1, join());
  negotiation.add(0, request_of("x"));
  negotiation.add(2, request_of("x"));
  const std::vector<Response> ready = negotiation.take_ready();
  ASSERT_THAT(names(ready), ElementsAre("x"));
  EXPECT_FALSE(ready[0].of_rank[1]);
  Request largest = request_of("y");
  largest.op = Op::max;
  negotiation.add(0, largest);
  negotiation.add(2, largest);
  EXPECT_THAT(negotiation.take_ready().at(0).error, HasSubstr("a rank has joined and has no data for it"));
  negotiation.add(0, join());
  EXPECT_THAT(negotiation.take_ready(), IsEmpty());
  negotiation.add(2, join());
  const std::vector<Response> last = negotiation.take_ready();
  ASSERT_THAT(names(last), ElementsAre("join"));
  EXPECT_EQ(last[0].any().root, 2);
  for (const int rank : {0, 1, 2}) { // rank 0 joins after it has asked
    negotiation.add(rank, largest);
    if (rank == 0) {
      negotiation.add(rank, join());
    }
  }
  EXPECT_EQ(negotiation.take_ready().at(0).error, "");
}

TEST(NegotiationTest, NamesTheRanksThatAStalledOneWaitsFor) {
  Negotiation negotiation(4);
  const auto start = Negotiation::Clock::now();
  negotiation.add(0, request_of("x"), start);
  negotiation.add(2, request_of("x"), start + 1s);
  EXPECT_THAT(negotiation.stalled(60s, start + 59s), IsEmpty());
  EXPECT_THAT(negotiation.stalled(60s, start + 61s),
              ElementsAre("allreduce of \"x\" has waited 61 s: ranks 0, 2 ask for it, ranks 1, 3 do not"));
  EXPECT_THAT(negotiation.stalled(60s, start + 62s), IsEmpty()) << "told once";
  EXPECT_EQ(negotiation.oldest(start + 61s), 61s);
}

TEST(RequestTest, ArrivesAsItWasSent) {
  Request request = request_of("gradient.w", {4, 5});
  request.kind = Kind::alltoall;
  request.shapes.push_back({});
  request.type = c10::ScalarType::BFloat16;
  request.op = Op::adasum;
  request.root = 3;
  request.prescale = 0.1;
  request.postscale = 7;
  request.splits = {1, 0, 3};
  request.on_device = true;
  const Request again = Request::from_json(request.to_json());
  EXPECT_EQ(again.to_json(), request.to_json());
  EXPECT_EQ(again.shapes, request.shapes);
  EXPECT_EQ(again.type, request.type);
}

} // namespace
} // namespace trireme::horovod
