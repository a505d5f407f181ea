#include <trireme/store/handshake.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::store {
namespace {

TEST(HandshakeTest, BothSidesProveThatTheyKnowTheSecret) {
  const Secret secret = Secret::random();
  const Greeting greeting = make_greeting("job");
  const Answer answer = make_answer(secret, greeting);
  EXPECT_TRUE(verify_answer(secret, greeting, answer));
  EXPECT_TRUE(verify_proof(secret, greeting, answer, make_proof(secret, greeting, answer)));
}

TEST(HandshakeTest, AnotherSecretProvesNothing) {
  const Secret secret = Secret::random();
  const Greeting greeting = make_greeting("");
  for (const Secret& wrong : {Secret::random(), Secret()}) {
    EXPECT_FALSE(verify_answer(secret, greeting, make_answer(wrong, greeting)));
    EXPECT_FALSE(verify_answer(wrong, greeting, make_answer(secret, greeting)));
    const Answer answer = make_answer(secret, greeting);
    EXPECT_FALSE(verify_proof(secret, greeting, answer, make_proof(wrong, greeting, answer)));
  }
}

TEST(HandshakeTest, WithoutASecretTheProtocolIsTheSame) {
  const Greeting greeting = make_greeting("");
  EXPECT_TRUE(verify_answer(Secret(), greeting, make_answer(Secret(), greeting)));
}

TEST(HandshakeTest, AReplayedAnswerIsWorthNothing) {
  const Secret secret = Secret::random();
  const Greeting first = make_greeting("job");
  const Greeting second = make_greeting("job");
  EXPECT_NE(first, second);
  const Answer answer = make_answer(secret, first);
  EXPECT_FALSE(verify_answer(secret, second, answer));
  EXPECT_FALSE(verify_proof(secret, second, answer, make_proof(secret, first, answer)));
}

TEST(HandshakeTest, AReflectedProofIsWorthNothing) {
  const Secret secret = Secret::random();
  const Greeting greeting = make_greeting("job");
  const Answer answer = make_answer(secret, greeting);
  Proof reflected;
  std::copy(answer.end() - kProofBytes, answer.end(), reflected.begin());
  EXPECT_FALSE(verify_proof(secret, greeting, answer, reflected));
  Answer forged = answer;
  const Proof own = make_proof(secret, greeting, answer);
  std::copy(own.begin(), own.end(), forged.end() - kProofBytes);
  EXPECT_FALSE(verify_answer(secret, greeting, forged));
}

TEST(HandshakeTest, EveryBitCounts) {
  const Secret secret = Secret::random();
  const Greeting greeting = make_greeting("job");
  const Answer answer = make_answer(secret, greeting);
  for (size_t bit = 0; bit < 8 * kAnswerBytes; ++bit) {
    Answer changed = answer;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(verify_answer(secret, greeting, changed)) << bit;
  }
}

TEST(HandshakeTest, GreetingsTellJobsVersionsAndStrangersApart) {
  Greeting greeting = make_greeting("one");
  EXPECT_EQ(judge_greeting(greeting, "one"), GreetingKind::of_this_job);
  EXPECT_EQ(judge_greeting(greeting, "two"), GreetingKind::of_another_job);
  EXPECT_EQ(judge_greeting(greeting, ""), GreetingKind::of_another_job);
  greeting[7] = static_cast<char>(kProtocolVersion + 1);
  EXPECT_EQ(judge_greeting(greeting, "one"), GreetingKind::of_another_version);
  greeting[0] = 'S';
  EXPECT_EQ(judge_greeting(greeting, "one"), GreetingKind::foreign);
}

TEST(HandshakeTest, TheFirstWrongByteIsEnough) {
  EXPECT_TRUE(may_become_answer(""));
  EXPECT_TRUE(may_become_answer("TRI"));
  EXPECT_FALSE(may_become_answer("G"));
  EXPECT_FALSE(may_become_answer(std::string_view("TRIREME\0", 8)));
  EXPECT_TRUE(may_become_answer("TRIREME\1anything"));
}

} // namespace
} // namespace trireme::store
