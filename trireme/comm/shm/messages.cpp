#include <trireme/comm/shm/messages.h>

#include <trireme/base/error.h>
#include <trireme/kernels/kernels.h>

#include <algorithm>
#include <cstring>

namespace trireme::comm::shm {
namespace {

constexpr uint64_t kEagerBytes = 16 << 10;
constexpr uint64_t kStreamedMessageBytes = 8 << 20;
constexpr size_t kWordBytes = 64;

std::atomic<uint32_t>& word_at(std::byte* block) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(block);
}

void copy(void* to, const void* from, uint64_t bytes) {
  if (bytes >= kStreamedMessageBytes) {
    kernels::active_kernels().stream_copy(to, from, static_cast<int64_t>(bytes));
  } else {
    std::memcpy(to, from, bytes);
  }
}

} // namespace

void Messages::send(const std::shared_ptr<Parcel>& parcel) {
  Arena& arena = Arena::process();
  const void* source = parcel->tensor.data_ptr();
  parcel->eager = parcel->bytes <= kEagerBytes;
  const bool copied = parcel->eager || !arena.contains(source, parcel->bytes);
  parcel->block = static_cast<std::byte*>(arena.allocate(kWordBytes + (copied ? parcel->bytes : 0)));
  if (parcel->block == nullptr) {
    throw Error("comm", concat("shared memory has no room for a message of ", parcel->bytes, " bytes."),
                "Set TRIREME_BACKEND=gloo.");
  }
  new (parcel->block) std::atomic<uint32_t>(0);
  parcel->data = arena.offset_of(copied ? parcel->block + kWordBytes : static_cast<const std::byte*>(source));
  if (copied) {
    copy(parcel->block + kWordBytes, source, parcel->bytes);
    parcel->tensor = at::Tensor();
  }
  outgoing_[static_cast<size_t>(parcel->peer)].push_back(parcel);
  ++waiting_sends_;
  if (!members_.broken()) {
    push(parcel->peer);
  }
}

bool Messages::push(int to) {
  auto& queue = outgoing_[static_cast<size_t>(to)];
  Mailbox& box = members_.control.mailbox(members_.rank, to);
  uint64_t& number = numbers_[static_cast<size_t>(to)];
  bool did = false;
  while (!queue.empty() && number - box.read.load(std::memory_order_acquire) < kLetters) {
    const auto parcel = queue.front();
    queue.pop_front();
    --waiting_sends_;
    Letter& letter = box.letters[number % kLetters];
    letter.tag = parcel->tag;
    letter.bytes = parcel->bytes;
    letter.type = static_cast<uint64_t>(parcel->type);
    letter.data = parcel->data;
    letter.taken = Arena::process().offset_of(parcel->block);
    letter.number.store(++number, std::memory_order_release);
    sent_.push_back(parcel);
    parcel->done = parcel->eager;
    did = true;
  }
  if (did) {
    members_.arenas[static_cast<size_t>(to)]->ring();
  }
  return did;
}

bool Messages::collect_taken() {
  bool did = false;
  for (auto place = sent_.begin(); place != sent_.end();) {
    Parcel& parcel = **place;
    if (word_at(parcel.block).load(std::memory_order_acquire) == 0) {
      ++place;
      continue;
    }
    Arena::process().release(parcel.block);
    parcel.block = nullptr;
    parcel.tensor = at::Tensor();
    parcel.done = true;
    place = sent_.erase(place);
    did = true;
  }
  return did;
}

void Messages::recv(const std::shared_ptr<Parcel>& parcel) {
  expected_.push_back(parcel);
  if (!members_.broken()) {
    deliver();
  }
}

bool Messages::unfinished() const {
  return waiting_sends_ != 0 || !expected_.empty() ||
         std::any_of(sent_.begin(), sent_.end(), [](const auto& parcel) { return !parcel->eager; });
}

bool Messages::look(int from) {
  Mailbox& box = members_.control.mailbox(from, members_.rank);
  uint64_t read = box.read.load(std::memory_order_relaxed);
  bool did = false;
  for (;;) {
    const Letter& letter = box.letters[read % kLetters];
    if (letter.number.load(std::memory_order_acquire) != read + 1) {
      break;
    }
    letters_[static_cast<size_t>(from)].push_back(
        {letter.tag, letter.bytes, static_cast<at::ScalarType>(letter.type), letter.data, letter.taken});
    box.read.store(++read, std::memory_order_release);
    did = true;
  }
  if (did) {
    members_.arenas[static_cast<size_t>(from)]->ring(); // there is room again
  }
  return did;
}

void Messages::fetch() {
  for (int from = 0; from < members_.size; ++from) {
    if (from != members_.rank) {
      look(from);
    }
  }
}

bool Messages::take(Parcel& parcel) {
  auto& letters = letters_[static_cast<size_t>(parcel.peer)];
  const auto found =
      std::find_if(letters.begin(), letters.end(), [&](const Arrived& letter) { return letter.tag == parcel.tag; });
  if (found == letters.end()) {
    return false;
  }
  const Arrived letter = *found;
  letters.erase(found);
  if (letter.bytes != parcel.bytes || letter.type != parcel.type) {
    parcel.error = concat("a message of ", letter.bytes, " bytes of ", c10::toString(letter.type), " came where ",
                          parcel.bytes, " bytes of ", c10::toString(parcel.type), " were expected");
  } else {
    const Touch touch(members_);
    if (!touch) {
      return false;
    }
    copy(parcel.tensor.data_ptr(), members_.at(parcel.peer, letter.data), parcel.bytes);
    word_at(members_.at(parcel.peer, letter.taken)).store(1, std::memory_order_release);
  }
  members_.arenas[static_cast<size_t>(parcel.peer)]->ring();
  parcel.tensor = at::Tensor();
  parcel.done = true;
  return true;
}

bool Messages::deliver() {
  bool did = false;
  // Handles all messages before any receive: one between two receives with its tag would go to the second.
  for (const auto& parcel : expected_) {
    did = look(parcel->peer) || did;
  }
  for (auto place = expected_.begin(); place != expected_.end();) {
    if (take(**place)) {
      place = expected_.erase(place);
      did = true;
    } else {
      ++place;
    }
  }
  return did;
}

bool Messages::progress() {
  bool did = !sent_.empty() && collect_taken();
  if (members_.broken()) {
    return did;
  }
  for (int to = 0; waiting_sends_ != 0 && to < members_.size; ++to) {
    did = push(to) || did;
  }
  return deliver() || did;
}

} // namespace trireme::comm::shm
