#include <trireme/store/handshake.h>

#include <trireme/base/error.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

namespace trireme::store {
namespace {

constexpr std::string_view kMagic = "TRIREME";
constexpr size_t kHeadBytes = 8; // magic and version
constexpr size_t kJobBytes = 8;
constexpr size_t kAnswerNonceBytes = 24;
static_assert(kHeadBytes + kAnswerNonceBytes + kProofBytes == kAnswerBytes);
static_assert(kHeadBytes + kJobBytes + 32 == kGreetingBytes);

std::array<char, kHeadBytes> head() {
  std::array<char, kHeadBytes> bytes{};
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  bytes.back() = static_cast<char>(kProtocolVersion);
  return bytes;
}

std::array<char, kJobBytes> tag_of(std::string_view job) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  if (EVP_Digest(job.data(), job.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1) {
    throw Error("store", "OpenSSL refuses SHA-256.", "See its configuration (openssl.cnf).");
  }
  std::array<char, kJobBytes> tag{};
  std::memcpy(tag.data(), digest.data(), tag.size());
  return tag;
}

Proof hmac(const Secret& secret, std::string_view side, const Greeting& greeting, std::string_view answer) {
  const std::string message = concat(side, std::string_view(greeting.data(), greeting.size()), answer);
  Proof proof{};
  unsigned length = 0;
  // An empty key still needs an address.
  const char* key = secret.empty() ? "" : secret.bytes().data();
  if (HMAC(EVP_sha256(), key, static_cast<int>(secret.bytes().size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &length) == nullptr ||
      length != proof.size()) {
    throw Error("store", "OpenSSL refuses HMAC-SHA256.", "See its configuration (openssl.cnf).");
  }
  return proof;
}

Proof client_proof(const Secret& secret, const Greeting& greeting, const Answer& answer) {
  return hmac(secret, "client", greeting, {answer.data(), kHeadBytes + kAnswerNonceBytes});
}

bool same(const char* left, const char* right) {
  return CRYPTO_memcmp(left, right, kProofBytes) == 0;
}

} // namespace

Greeting make_greeting(std::string_view job) {
  Greeting greeting{};
  const auto start = head();
  const auto tag = tag_of(job);
  std::copy(start.begin(), start.end(), greeting.begin());
  std::copy(tag.begin(), tag.end(), greeting.begin() + kHeadBytes);
  fill_random(greeting.data() + kHeadBytes + kJobBytes, kGreetingBytes - kHeadBytes - kJobBytes);
  return greeting;
}

GreetingKind judge_greeting(const Greeting& greeting, std::string_view job) {
  const auto start = head();
  if (!std::equal(kMagic.begin(), kMagic.end(), greeting.begin())) {
    return GreetingKind::foreign;
  }
  if (!std::equal(start.begin(), start.end(), greeting.begin())) {
    return GreetingKind::of_another_version;
  }
  const auto tag = tag_of(job);
  return std::equal(tag.begin(), tag.end(), greeting.begin() + kHeadBytes) ? GreetingKind::of_this_job
                                                                           : GreetingKind::of_another_job;
}

Answer make_answer(const Secret& secret, const Greeting& greeting) {
  Answer answer{};
  const auto start = head();
  std::copy(start.begin(), start.end(), answer.begin());
  fill_random(answer.data() + kHeadBytes, kAnswerNonceBytes);
  const Proof proof = client_proof(secret, greeting, answer);
  std::copy(proof.begin(), proof.end(), answer.begin() + kHeadBytes + kAnswerNonceBytes);
  return answer;
}

bool may_become_answer(std::string_view received) {
  const auto start = head();
  const size_t compared = std::min(received.size(), start.size());
  return received.substr(0, compared) == std::string_view(start.data(), compared);
}

bool verify_answer(const Secret& secret, const Greeting& greeting, const Answer& answer) {
  return may_become_answer({answer.data(), answer.size()}) &&
         same(client_proof(secret, greeting, answer).data(), answer.data() + kHeadBytes + kAnswerNonceBytes);
}

Proof make_proof(const Secret& secret, const Greeting& greeting, const Answer& answer) {
  return hmac(secret, "server", greeting, {answer.data(), answer.size()});
}

bool verify_proof(const Secret& secret, const Greeting& greeting, const Answer& answer, const Proof& proof) {
  return same(make_proof(secret, greeting, answer).data(), proof.data());
}

} // namespace trireme::store
