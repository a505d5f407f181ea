#include <trireme/memory/offload/disk_store.h>

#include <trireme/base/error.h>
#include <trireme/base/notes.h>
#include <trireme/memory/offload/checksum.h>
#include <trireme/monitor/chrome_trace.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>
#include <utility>

namespace trireme::offload {

DiskStore::DiskStore(std::shared_ptr<RankFolder> folder, DiskOptions options, std::shared_ptr<Traffic> traffic)
    : folder_(std::move(folder)),
      options_(std::move(options)),
      kind_(keep_name(options_.kind)),
      traffic_(std::move(traffic)),
      transfers_(options_.aio),
      left_in_memory_(options_.elements_in_memory) {
  if (options_.buffers < 3) {
    throw InputError("offload", concat("buffer_count of the ", options_.kind, " is ", options_.buffers),
                     "Set it to at least 3: one bucket is read and one written while one is used.");
  }
}

DiskStore::~DiskStore() = default;

std::vector<bool> DiskStore::on_host(const std::vector<int64_t>& numel, at::Device) {
  return std::vector<bool>(numel.size(), true);
}

int64_t DiskStore::add(const std::vector<bucket::StoredArray>& arrays, at::Device device) {
  if (options_.pin_memory && !device.is_cpu()) {
    pinned_for_ = device.type();
  }
  const int64_t number = std::ssize(buffers_);
  const auto needs_place = [&](const DiskPlan::Bucket& bucket) {
    const bool stays = bucket.bytes == 0 || bucket.elements <= left_in_memory_;
    left_in_memory_ -= stays ? bucket.elements : 0;
    return !stays;
  };
  Buffer& buffer = buffers_.emplace_back(Buffer{arrays, DiskPlan(arrays, needs_place), std::nullopt, {}, {}});
  buffer.buckets.resize(buffer.plan.buckets.size());
  for (size_t b = 0; b < buffer.buckets.size(); ++b) {
    if (buffer.plan.buckets[b].bytes == 0) {
      for (const bucket::StoredArray& array : arrays) {
        buffer.buckets[b].in_memory.push_back(device::pinned_host(array.numel[b], array.type, pinned_for_));
      }
      fill(buffer, buffer.buckets[b].in_memory);
    }
  }
  add_sizes(buffer.plan);
  if (buffer.plan.bytes > 0) {
    buffer.file = folder_->make_file(options_.kind, number, buffer.plan.bytes);
    if (!options_.fast_init) {
      write_initial_values(buffer);
    }
  }
  return number;
}

void DiskStore::add_sizes(const DiskPlan& plan) {
  for (const DiskPlan::Bucket& bucket : plan.buckets) {
    if (bucket.bytes > 0) {
      sizes_.push_back(bucket.bytes);
    }
  }
  std::sort(sizes_.begin(), sizes_.end(), std::greater<>());
  sizes_.resize(std::min(sizes_.size(), static_cast<size_t>(options_.buffers)));
  for (auto first_extra = std::find_if(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->is_extra; });
       first_extra - slots_.begin() < std::ssize(sizes_);) {
    first_extra = slots_.insert(first_extra, std::make_unique<Slot>()) + 1;
  }
}

void DiskStore::name_buckets(int64_t buffer, std::vector<std::string> first_parameters) {
  buffers_[buffer].names = std::move(first_parameters);
}

// Writes one bucket at a time, so that it needs the memory of one bucket.
void DiskStore::write_initial_values(Buffer& buffer) {
  int64_t most = 0;
  for (const DiskPlan::Bucket& place : buffer.plan.buckets) {
    most = std::max(most, place.bytes);
  }
  const device::HostBuffer memory(most);
  for (size_t b = 0; b < buffer.buckets.size(); ++b) {
    const DiskPlan::Bucket& place = buffer.plan.buckets[b];
    if (place.bytes == 0) {
      continue;
    }
    fill(buffer, parts_of(memory, buffer, static_cast<int64_t>(b)));
    buffer.buckets[b].checksum = checksum(memory.data(), static_cast<size_t>(place.bytes));
    transfers_.wait(transfers_.write(*buffer.file, place.offset, memory.data(), place.bytes));
    buffer.buckets[b].is_written = true;
    traffic_->written += place.bytes;
  }
}

void DiskStore::fill(const Buffer& buffer, const std::vector<at::Tensor>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].fill_(buffer.arrays[i].initial);
  }
}

std::vector<at::Tensor> DiskStore::parts_of(const device::HostBuffer& memory, const Buffer& buffer, int64_t bucket) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < buffer.arrays.size(); ++i) {
    const bucket::StoredArray& array = buffer.arrays[i];
    parts.push_back(memory.tensor(array.numel[bucket], array.type, buffer.plan.buckets[bucket].begins[i]));
  }
  return parts;
}

const std::vector<at::Tensor>& DiskStore::acquire(int64_t buffer, int64_t bucket) {
  Bucket& wanted = buffers_[buffer].buckets[bucket];
  if (!wanted.in_memory.empty()) {
    return wanted.in_memory;
  }
  if (wanted.is_lost) {
    throw Error("offload", concat(describe(buffer, bucket), " is lost: it could not be written"),
                "Start the ranks again and load the last checkpoint.");
  }
  Slot* slot = find(buffer, bucket);
  if (slot == nullptr) {
    slot = take(buffers_[buffer].plan.buckets[bucket].bytes, false);
    std::for_each(slots_.begin(), slots_.end(), [](const auto& other) {
      other->is_promised = false;
    }); // prefetched buckets were used in another order
    if (slot == nullptr) {
      slot = take(buffers_[buffer].plan.buckets[bucket].bytes, true);
    }
    load(*slot, buffer, bucket);
  }
  finish(*slot);
  slot->is_promised = false;
  slot->last_use = ++uses_;
  if (slot->uses++ == 0) {
    slot->parts = parts_of(slot->memory, buffers_[buffer], bucket);
  }
  return slot->parts;
}

void DiskStore::release(int64_t buffer, int64_t bucket, bool modified) {
  if (!buffers_[buffer].buckets[bucket].in_memory.empty()) {
    return;
  }
  Slot* const slot = find(buffer, bucket);
  if (slot == nullptr || slot->uses == 0) {
    throw Error("offload", concat(describe(buffer, bucket), ": release() without acquire()"));
  }
  slot->is_modified = slot->is_modified || modified;
  if (--slot->uses > 0) {
    return;
  }
  slot->parts.clear();
  if (std::exchange(slot->is_modified, false)) {
    slot->memory.wait_until_idle();
    store(*slot);
    if (slot->is_extra) {
      finish(*slot); // freed as soon as no tensor holds it
    }
  }
  drop_extra_slots();
}

void DiskStore::prefetch(int64_t buffer, int64_t bucket) {
  const Bucket& wanted = buffers_[buffer].buckets[bucket];
  if (!options_.pipeline_read || !wanted.in_memory.empty() || !wanted.is_written || wanted.is_lost) {
    return;
  }
  Slot* slot = find(buffer, bucket);
  if (slot == nullptr) {
    slot = take(buffers_[buffer].plan.buckets[bucket].bytes, false);
    if (slot == nullptr) {
      return;
    }
    load(*slot, buffer, bucket);
  }
  slot->is_promised = true;
  slot->last_use = ++uses_;
}

void DiskStore::forget(int64_t buffer, int64_t bucket) {
  Bucket& unwanted = buffers_[buffer].buckets[bucket];
  if (!unwanted.in_memory.empty()) {
    return;
  }
  unwanted.is_written = false;
  unwanted.is_lost = false;
  if (Slot* const slot = find(buffer, bucket); slot != nullptr && slot->uses == 0) {
    finish(*slot);
    slot->buffer = slot->bucket = -1;
    slot->is_promised = false;
  }
}

bool DiskStore::keep_until(int64_t buffer, int64_t bucket, std::shared_ptr<const device::Event> done) {
  if (Slot* const slot = find(buffer, bucket); slot != nullptr) {
    slot->memory.used_until(std::move(done)); // ParameterShards orders it after earlier uses
  }
  return true;
}

std::optional<bucket::Extent> DiskStore::extent(int64_t buffer, int64_t bucket, int64_t array) {
  const Buffer& of = buffers_[buffer];
  const Bucket& wanted = of.buckets[bucket];
  Slot* const slot = find(buffer, bucket);
  if (!wanted.in_memory.empty() || !wanted.is_written || wanted.is_lost || (slot != nullptr && slot->uses > 0)) {
    return std::nullopt;
  }
  if (slot != nullptr) {
    finish(*slot);
  }
  const DiskPlan::Bucket& place = of.plan.buckets[bucket];
  const bucket::StoredArray& stored = of.arrays[array];
  return bucket::Extent{concat("/proc/self/fd/", of.file->descriptor()), place.offset + place.begins[array],
                        stored.numel[bucket] * static_cast<int64_t>(c10::elementSize(stored.type))};
}

int64_t DiskStore::ahead() const {
  const bool has_much_larger = sizes_.size() > 1 && sizes_[0] >= 2 * sizes_[1];
  return std::max<int64_t>(1, options_.buffers - (has_much_larger ? 3 : 2));
}

int64_t DiskStore::buffer_bytes() const {
  int64_t bytes = 0;
  for (const auto& slot : slots_) {
    bytes += slot->memory.size();
  }
  return bytes;
}

DiskStore::Slot* DiskStore::find(int64_t buffer, int64_t bucket) {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const auto& slot) { return slot->buffer == buffer && slot->bucket == bucket; });
  return found == slots_.end() ? nullptr : found->get();
}

// Returns a buffer of at least `bytes` to reuse, evicting its bucket, or nullptr. With `must` it allocates an extra one
// if none is free. A buffer being written that was used last comes last. Otherwise the one closest in size is taken, so
// that the largest stays for the largest buckets. Among those empty ones come first, then the least recently used. The
// progress of transfers makes no difference: the choice follows from the calls alone.
DiskStore::Slot* DiskStore::take(int64_t bytes, bool must) {
  const auto is_free = [&](size_t i) {
    const Slot& slot = *slots_[i];
    return slot.uses == 0 && !slot.is_promised && !slot.memory.is_held() && size_of(i) >= bytes;
  };
  uint64_t last = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    last = std::max(last, is_free(i) && slots_[i]->buffer >= 0 ? slots_[i]->last_use : 0);
  }
  const auto order = [&](size_t i) {
    const Slot& slot = *slots_[i];
    const bool is_empty = slot.buffer < 0;
    const bool is_being_written = slot.state == Slot::State::writing && slot.last_use == last;
    const int halvings =
        std::bit_width(static_cast<uint64_t>(size_of(i) / std::max<int64_t>(bytes, 1))); // until it would be too small
    return std::tuple(is_being_written, halvings, !is_empty,
                      is_empty ? static_cast<uint64_t>(size_of(i)) : slot.last_use);
  };
  std::optional<size_t> best;
  for (size_t i = slots_.size(); i-- > 0;) {
    if (is_free(i) && (!best || order(i) < order(*best))) {
      best = i;
    }
  }
  if (!best) {
    if (!must) {
      return nullptr;
    }
    Slot& extra = *slots_.emplace_back(std::make_unique<Slot>());
    extra.is_extra = true;
    give_memory(extra, bytes);
    return &extra;
  }
  Slot& slot = *slots_[*best];
  finish(slot);
  slot.memory.wait_until_idle();
  slot.buffer = slot.bucket = -1;
  if (slot.memory.size() < bytes) {
    give_memory(slot, sizes_[*best]);
  }
  return &slot;
}

int64_t DiskStore::size_of(size_t slot) const {
  return slots_[slot]->is_extra ? slots_[slot]->memory.size() : sizes_[slot];
}

void DiskStore::give_memory(Slot& slot, int64_t bytes) {
  if (std::exchange(slot.is_registered, false)) {
    transfers_.remove_buffer(slot.memory.data());
  }
  slot.memory = device::HostBuffer(bytes, pinned_for_);
  if (pinned_for_ != at::kCPU) {
    slot.memory.tensor(slot.memory.size()).zero_(); // gaps are written too
  }
  slot.is_registered = !slot.is_extra && transfers_.add_buffer(slot.memory.data(), slot.memory.size());
}

void DiskStore::drop_extra_slots() {
  for (auto slot = slots_.end(); slot != slots_.begin() && std::ssize(slots_) > std::ssize(sizes_);) {
    --slot;
    if ((*slot)->uses == 0 && (*slot)->is_extra && (*slot)->memory.is_idle() && !(*slot)->memory.is_held() &&
        (*slot)->state == Slot::State::idle) {
      slot = slots_.erase(slot);
    }
  }
}

void DiskStore::load(Slot& slot, int64_t buffer, int64_t bucket) {
  const DiskPlan::Bucket& place = buffers_[buffer].plan.buckets[bucket];
  slot.buffer = buffer;
  slot.bucket = bucket;
  if (!buffers_[buffer].buckets[bucket].is_written) {
    fill(buffers_[buffer], parts_of(slot.memory, buffers_[buffer], bucket));
    return;
  }
  slot.transfer = transfers_.read(*buffers_[buffer].file, place.offset, slot.memory.data(), place.bytes);
  slot.state = Slot::State::reading;
  traffic_->read += place.bytes;
}

void DiskStore::store(Slot& slot) {
  const DiskPlan::Bucket& place = buffers_[slot.buffer].plan.buckets[slot.bucket];
  Bucket& bucket = buffers_[slot.buffer].buckets[slot.bucket];
  bucket.checksum = checksum(slot.memory.data(), static_cast<size_t>(place.bytes));
  slot.transfer = transfers_.write(*buffers_[slot.buffer].file, place.offset, slot.memory.data(), place.bytes);
  slot.state = Slot::State::writing;
  bucket.is_written = true;
  traffic_->written += place.bytes;
  if (!options_.pipeline_write) {
    finish(slot);
  }
}

// Waits for the slot's transfer. A slot whose transfer failed is empty.
void DiskStore::finish(Slot& slot) {
  if (slot.state == Slot::State::idle) {
    return;
  }
  const bool reads = slot.state == Slot::State::reading;
  try {
    const Note note(reads ? "read from disk of bucket" : "write to disk of bucket", slot.bucket, kind_);
    const monitor::Span span(reads ? "wait for a read from disk" : "wait for a write to disk", monitor::Lane::storage,
                             buffers_[slot.buffer].plan.buckets[slot.bucket].bytes);
    slot.state = Slot::State::idle;
    transfers_.wait(slot.transfer);
    if (reads) {
      check(slot);
    }
  } catch (...) {
    buffers_[slot.buffer].buckets[slot.bucket].is_lost = !reads;
    slot.buffer = slot.bucket = -1;
    slot.is_promised = false;
    throw;
  }
}

void DiskStore::check(const Slot& slot) {
  const Buffer& buffer = buffers_[slot.buffer];
  const DiskPlan::Bucket& place = buffer.plan.buckets[slot.bucket];
  if (checksum(slot.memory.data(), static_cast<size_t>(place.bytes)) != buffer.buckets[slot.bucket].checksum) {
    throw Error(
        "offload",
        concat("the disk has changed ", describe(slot.buffer, slot.bucket), ": bytes ", place.offset, " to ",
               place.offset + place.bytes, " of ", buffer.file->path().string(), " differ from what was written"),
        "Nothing was computed with them. Start the ranks again, load the last checkpoint, and check "
        "the disk.");
  }
}

std::string DiskStore::describe(int64_t buffer, int64_t bucket) const {
  const std::vector<std::string>& names = buffers_[buffer].names;
  return concat("bucket ", bucket, " of the ", options_.kind,
                names.empty() ? "" : concat(", which begins with \"", names.at(bucket), "\""));
}

} // namespace trireme::offload
