#pragma once

#include <trireme/store/secret.h>

#include <array>
#include <string>
#include <string_view>

namespace trireme::store {

/// Both ends of a new connection prove that they know the secret without sending it: mutual challenge and response with
/// HMAC-SHA256 (Bellare, Canetti, Krawczyk 1996) in three passes, as in ISO/IEC 9798-4.
///
///   server -> client  greeting: "TRIREME", version, 8 bytes of SHA-256 of the job's name, 32 random bytes
///   client -> server  answer:   "TRIREME", version, 24 random bytes,
///                               HMAC(secret, "client" | greeting | the answer so far)
///   server -> client  verdict:  'A' and HMAC(secret, "server" | greeting | answer),
///                               or 'R' and the end of the connection
///
/// Each proof covers both ends' random bytes and names the end that made it, so a replayed or reflected answer is
/// useless. Later messages on the connection are neither encrypted nor signed.
inline constexpr unsigned char kProtocolVersion = 1;
inline constexpr size_t kGreetingBytes = 48;
inline constexpr size_t kAnswerBytes = 64;
inline constexpr size_t kProofBytes = 32;
inline constexpr char kAccepted = 'A';
inline constexpr char kRefused = 'R';

using Greeting = std::array<char, kGreetingBytes>;
using Answer = std::array<char, kAnswerBytes>;
using Proof = std::array<char, kProofBytes>;

/// A fresh greeting of the server of this job ("" for a job without a name).
Greeting make_greeting(std::string_view job);

/// Result of the client's check of a greeting.
enum class GreetingKind { of_this_job, of_another_job, of_another_version, foreign };
GreetingKind judge_greeting(const Greeting& greeting, std::string_view job);

/// A fresh answer of the client.
Answer make_answer(const Secret& secret, const Greeting& greeting);

/// Returns false if the received bytes (at most kAnswerBytes) cannot be the start of an answer.
bool may_become_answer(std::string_view received);

/// Whether the sender of the answer knows the secret. Takes the same time for every wrong proof.
bool verify_answer(const Secret& secret, const Greeting& greeting, const Answer& answer);

/// Makes the server's proof; the client verifies it.
Proof make_proof(const Secret& secret, const Greeting& greeting, const Answer& answer);
bool verify_proof(const Secret& secret, const Greeting& greeting, const Answer& answer, const Proof& proof);

} // namespace trireme::store
