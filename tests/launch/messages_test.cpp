#include <trireme/launch/messages.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>

namespace trireme::launch {
namespace {

TEST(MessagesTest, CarryAnyBytes) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(to_bytes(to_text(bytes)), bytes);
  const std::string line = pack({{"is", "output"}, {"text", to_text(bytes)}});
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line";
  MessageReader reader;
  reader.add(line);
  const auto read = reader.next();
  ASSERT_TRUE(read && read->message);
  EXPECT_EQ(to_bytes(read->message->at("text").get<std::string>()), bytes);
}

TEST(MessagesTest, ArriveInPiecesAndBesideOtherWords) {
  const std::string stream =
      "Welcome to node7!\n" + pack({{"is", "ready"}}) + "\n{broken\n[1]\n" + pack({{"is", "beat"}});
  MessageReader reader;
  std::vector<std::string> seen;
  for (const char c : stream) {
    reader.add(std::string(1, c));
    while (const auto line = reader.next()) {
      seen.push_back(line->message ? line->message->at("is").get<std::string>() : "text: " + line->text);
    }
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"text: Welcome to node7!", "ready", "text: ", "text: {broken", "text: [1]",
                                            "beat"}));
}

TEST(MessagesTest, WhatNeverEndsIsNoMessage) {
  MessageReader reader;
  const std::string much(16 << 20, 'x');
  EXPECT_THROW(
      {
        for (int i = 0; i < 5; ++i) {
          reader.add(much);
        }
      },
      Error);
}

TEST(MessagesTest, SharesSurviveTheTrip) {
  Share share;
  share.first_rank = 4;
  share.local_ranks = 2;
  share.ranks = 6;
  share.node = 1;
  share.nodes = 2;
  share.restarts = 3;
  share.max_restarts = 5;
  share.address = "node1";
  share.ports = {4711, 4712};
  share.terminal_columns = 80;
  share.command = {"/bin/prog\xff", "", "a b", "\n"};
  const Share back = unpack_share(Message::parse(pack_share(share).dump()));
  EXPECT_EQ(back.first_rank, 4);
  EXPECT_EQ(back.local_ranks, 2);
  EXPECT_EQ(back.ranks, 6);
  EXPECT_EQ(back.node, 1);
  EXPECT_EQ(back.nodes, 2);
  EXPECT_EQ(back.restarts, 3);
  EXPECT_EQ(back.max_restarts, 5);
  EXPECT_EQ(back.address, "node1");
  EXPECT_EQ(back.ports.store, 4711);
  EXPECT_EQ(back.ports.program, 4712);
  EXPECT_EQ(back.terminal_columns, 80);
  EXPECT_EQ(back.command, share.command);
}

TEST(MessagesTest, OnlyNumbersThatAnIntHoldsAreTaken) {
  for (const Message& bad :
       {Message(1e300), Message(1.5), Message(int64_t{1} << 40), Message("4"), Message(nullptr), Message(true)}) {
    for (const char* key : {"first_rank", "nodes", "port"}) {
      Message message = pack_share({});
      message[key] = bad;
      EXPECT_ANY_THROW(unpack_share(message)) << message;
    }
  }
}

} // namespace
} // namespace trireme::launch
