#include <trireme/memory/activations/impl.h>
#include <trireme/memory/activations/way_of_part.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace trireme::activations {
namespace {

constexpr int64_t kMeasuredStep = 1; // the first step includes allocations and page faults

// Steps in which the host checks that ranks had the same inputs: the first ones, then one in kCheckedAgain.
constexpr int64_t kCheckedSteps = 4;
constexpr int64_t kCheckedAgain = 100;

thread_local Activations::Impl* present = nullptr;

// Makes an Impl the active one; null inside a part, whose inner parts are not managed.
class Present {
 public:
  explicit Present(Activations::Impl* impl) : before_(present) { present = impl; }
  ~Present() { present = before_; }
  Present(const Present&) = delete;
  Present& operator=(const Present&) = delete;

 private:
  Activations::Impl* before_;
};

std::optional<Place> place_of(Way way) {
  return to_nvme(way) ? std::optional(Place::nvme) : to_host(way) ? std::optional(Place::host) : std::nullopt;
}

std::regex expression(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw InputError("activations", concat("layers \"", text, "\" is not a regular expression: ", error.what()),
                     "Name a class, as GptBlock, or several as GptBlock|BertBlock.");
  }
}

} // namespace

Activations::Impl::Impl(Options given, at::Device on, const aio::Options& files, int64_t micro_batches, Sharing sharing,
                        int64_t without_weights)
    : options(std::move(given)), device(on), aio(files), in_flight(micro_batches), put_off(without_weights) {
  if (options.uses_nvme() && options.nvme_path.empty()) {
    throw InputError("activations", "activations are to be moved to files, but nvme_path is missing",
                     "Name a folder on a local disk: \"nvme_path\": \"/local_nvme\".");
  }
  if (!options.layers.empty()) {
    layers_ = expression(options.layers);
  }
  mover = std::make_shared<Mover>(device, ledger, options.uses_nvme() ? options.nvme_path : std::string(), aio);
  storages = std::make_shared<SavedStorages>(ledger, mover, options.shares_inputs ? std::move(sharing) : Sharing());
}

Way Activations::Impl::usable(Way way) const {
  return activations::usable(way, !device.is_cpu());
}

// The policy that needs the least memory.
Way Activations::Impl::measuring_way() const {
  return !device.is_cpu() ? Way::recompute_host : options.uses_nvme() ? Way::recompute_nvme : Way::recompute;
}

Way Activations::Impl::first_way(const ModelPart& part, size_t index) const {
  if (options.automatic) {
    return measuring_way();
  }
  const size_t place = part.place < 0 ? index : static_cast<size_t>(part.place);
  if (!options.choices.empty() && place >= options.choices.size()) {
    throw InputError(
        "activations",
        concat("\"choices\" has ", options.choices.size(), " policies, but the model calls another part: ", part.type),
        "List one per part; a run with \"policy\": \"auto\" prints them.");
  }
  return way_of_part(options, place, part.recomputes, !device.is_cpu());
}

size_t Activations::Impl::index_of(const ModelPart& part, const Tensors& inputs) {
  const auto found =
      std::find_if(parts.begin(), parts.end(), [&](const Known& known) { return known.key == part.key; });
  if (found != parts.end()) {
    return static_cast<size_t>(found - parts.begin());
  }
  places_given_ = places_given_ || part.place >= 0;
  parts.push_back({part.key, std::string(part.type), part.place, first_way(part, parts.size()), 0, 0, 0, 0, 0,
                   Mark(device), Mark(device), Mark(device)});
  take_adopted(parts.size() - 1, inputs);
  return parts.size() - 1;
}

void Activations::Impl::take_adopted(size_t index, const Tensors& inputs) {
  if (!adopted_) {
    return;
  }
  Known& known = parts[index];
  const size_t place = known.place < 0 ? index : static_cast<size_t>(known.place);
  Call call(storages, fixed, std::nullopt, options.least_bytes);
  call.set_inputs(inputs);
  if (place >= adopted_->ways.size() || call.input_bytes() > adopted_->input_bytes[place]) {
    doubts_ = true;
    return;
  }
  known.way = adopted_->ways[place];
  known.bytes = adopted_->bytes[place];
  known.input_bytes = adopted_->input_bytes[place];
  known.share_bytes = adopted_->share_bytes[place];
  allow_moves();
}

void Activations::Impl::adopt(Decision decision, bool all) {
  if (!options.automatic || steps > 0 || !parts.empty()) {
    throw Error("activations", "a decision can only be adopted with \"auto\", before the first forward");
  }
  for (Way& way : decision.ways) {
    way = usable(way);
  }
  adopted_ = std::move(decision);
  adopts_all_parts_ = all;
}

bool Activations::Impl::wants_adoption() const {
  return adopted_.has_value() && steps > 0;
}

bool Activations::Impl::doubts_adopted() const {
  return doubts_ || (adopts_all_parts_ && adopted_ && parts.size() != adopted_->ways.size());
}

void Activations::Impl::end_adoption(bool adopted) {
  adopted_.reset();
  doubts_ = false;
  decided_ = adopted;
  if (!adopted) {
    steps = 0;
    for (Known& known : parts) {
      known.way = measuring_way();
      known.bytes = known.input_bytes = known.share_bytes = 0;
    }
  }
}

bool Activations::Impl::measures() const {
  return steps <= kMeasuredStep;
}

std::shared_ptr<Call> Activations::Impl::begin_call(size_t index, std::optional<Place> place, const Tensors& inputs,
                                                    bool shares) {
  auto call = std::make_shared<Call>(storages, fixed, place, options.least_bytes);
  if (shares) {
    call->share_inputs(parts[index].type);
  }
  call->set_inputs(inputs);
  call->set_before(last_call_);
  if (measures()) {
    parts[index].share_bytes = std::max(parts[index].share_bytes, call->share_bytes());
    call->on_backward([self = shared_from_this(), index] { self->parts[index].backward_begins.now(); });
  }
  last_call_ = call;
  return call;
}

void Activations::Impl::end_forward(size_t index, const Call& call) {
  if (!measures()) {
    return;
  }
  Known& known = parts[index];
  known.forward_ends.now();
  known.bytes = std::max(known.bytes, call.bytes());
  known.input_bytes = std::max(known.input_bytes, call.input_bytes());
  known.stay_bytes = std::max(known.stay_bytes, call.stay_bytes());
  known.padding = std::max(known.padding, call.padding());
  allow_moves();
}

// Allows the bytes of the largest moved part, so that it is moved out while the next one computes.
void Activations::Impl::allow_moves() {
  int64_t largest = 0;
  for (const Known& known : parts) {
    if (moves(known.way)) {
      largest = std::max(largest, recomputes(known.way) ? known.share_bytes : known.input_bytes + known.bytes);
    }
  }
  mover->set_most_leaving(largest);
}

Tensors Activations::Impl::call_directly(size_t index, const Function& f, const Tensors& inputs) {
  const auto call = begin_call(index, activations::place_of(parts[index].way), inputs, /*shares=*/false);
  CallSaver saver(call);
  if (measures()) {
    parts[index].forward_begins.now();
  }
  Tensors outputs;
  {
    const Present inside(nullptr);
    const recompute::SavingScope scope(&saver);
    outputs = f(inputs);
  }
  end_forward(index, *call);
  return outputs;
}

// Autograd saves the inputs for the call itself. What f saves when it is recomputed belongs to an inner call, which
// only counts.
Tensors Activations::Impl::call_recomputed(size_t index, const ModelPart& part, const Function& f,
                                           const Tensors& inputs) {
  const auto call = begin_call(index, activations::place_of(parts[index].way), inputs, /*shares=*/true);
  CallSaver saver(call);
  const auto first = std::make_shared<bool>(true);
  const Function counted = [self = shared_from_this(), index, f, first](const Tensors& x) {
    const auto inner = std::make_shared<Call>(self->storages, self->fixed, std::nullopt, self->options.least_bytes);
    inner->set_inputs(x);
    CallSaver inner_saver(inner);
    const bool measured = std::exchange(*first, false) && self->measures();
    if (measured) {
      self->parts[index].forward_begins.now();
    }
    Tensors outputs;
    {
      const Present inside(nullptr);
      const recompute::SavingScope scope(&inner_saver);
      outputs = f(x);
    }
    if (measured) {
      self->end_forward(index, *inner);
    }
    return outputs;
  };
  const recompute::SavingScope scope(&saver);
  return recompute::run(counted, inputs, part.recompute);
}

Tensors Activations::Impl::run(const ModelPart& part, const Function& f, const Tensors& inputs) {
  if (layers_ && !std::regex_search(part.type.begin(), part.type.end(), *layers_)) {
    left_out.emplace(part.type);
    const Present inside(nullptr);
    return part.recomputes ? recompute::run(f, inputs, part.recompute) : f(inputs);
  }
  const size_t index = index_of(part, inputs);
  return recomputes(parts[index].way) ? call_recomputed(index, part, f, inputs) : call_directly(index, f, inputs);
}

void Activations::Impl::end_step() {
  if (!places_given_ && parts.size() < options.choices.size()) {
    throw InputError(
        "activations",
        concat("\"choices\" has ", options.choices.size(), " policies, but the model calls ", parts.size(), " parts"),
        "List one per part; a run with \"policy\": \"auto\" prints them.");
  }
  if (steps < kCheckedSteps || steps % kCheckedAgain == 0) {
    storages->check_shares();
  }
  ++steps;
  peak_bytes = ledger->peak();
  ledger->forget_peak();
}

bool Activations::Impl::wants_decision() const {
  return !decided_ && steps > kMeasuredStep && (options.automatic || options.profile);
}

bool active() {
  return present != nullptr;
}

Tensors run(const ModelPart& part, const Function& f, const Tensors& inputs) {
  Activations::Impl* const impl = present;
  if (impl != nullptr && part.begins) {
    impl->begin_forward();
  }
  const bool differentiable = std::any_of(
      inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.defined() && input.requires_grad(); });
  if (impl == nullptr || !at::GradMode::is_enabled() || (!differentiable && !part.recomputes)) {
    return part.recomputes ? recompute::run(f, inputs, part.recompute) : f(inputs);
  }
  return impl->run(part, f, inputs);
}

Activations::Activations(Options options, at::Device device, const aio::Options& aio, int64_t in_flight,
                         Sharing sharing, int64_t put_off)
    : impl_(std::make_shared<Impl>(std::move(options), device, aio, in_flight, std::move(sharing), put_off)) {}

Activations::~Activations() = default;

std::shared_ptr<void> Activations::enter(const Tensors& fixed) {
  auto set = std::make_shared<std::unordered_set<const void*>>();
  for (const at::Tensor& tensor : fixed) {
    if (tensor.defined() && tensor.has_storage()) {
      set->insert(tensor.storage().unsafeGetStorageImpl());
    }
  }
  impl_->fixed = std::move(set);
  return std::make_shared<Present>(impl_.get());
}

void Activations::end_step() {
  impl_->end_step();
}
bool Activations::wants_decision() const {
  return impl_->wants_decision();
}
std::vector<double> Activations::measured(int64_t host_room) const {
  return impl_->measured(host_room);
}
std::string Activations::decide(const std::vector<double>& largest) {
  return impl_->decide(largest);
}

Decision Activations::decision() const {
  Decision decision;
  for (const auto& known : impl_->parts) {
    decision.ways.push_back(known.way);
    decision.bytes.push_back(known.bytes);
    decision.input_bytes.push_back(known.input_bytes);
    decision.share_bytes.push_back(known.share_bytes);
  }
  return decision;
}
bool Activations::has_room_for(const Decision& decision, int64_t host_room) const {
  return impl_->has_room_for(decision, host_room);
}
void Activations::adopt(Decision decision, bool all) {
  impl_->adopt(std::move(decision), all);
}
bool Activations::wants_adoption() const {
  return impl_->wants_adoption();
}
bool Activations::doubts_adopted() const {
  return impl_->doubts_adopted();
}
void Activations::end_adoption(bool adopted) {
  impl_->end_adoption(adopted);
}

int64_t Activations::steps() const {
  return impl_->steps;
}
std::vector<std::string> Activations::left_out() const {
  return {impl_->left_out.begin(), impl_->left_out.end()};
}
std::vector<Way> Activations::ways() const {
  std::vector<Way> ways;
  for (const auto& known : impl_->parts) {
    ways.push_back(known.way);
  }
  return ways;
}
std::vector<int64_t> Activations::places() const {
  std::vector<int64_t> places;
  for (size_t i = 0; i < impl_->parts.size(); ++i) {
    places.push_back(impl_->parts[i].place < 0 ? static_cast<int64_t>(i) : impl_->parts[i].place);
  }
  return places;
}
const Options& Activations::options() const {
  return impl_->options;
}

int64_t Activations::bytes() const {
  return impl_->ledger->bytes();
}
int64_t Activations::peak_bytes() const {
  return impl_->peak_bytes;
}
int64_t Activations::bytes_out() const {
  return impl_->mover->bytes_out();
}
int64_t Activations::bytes_in() const {
  return impl_->mover->bytes_in();
}

} // namespace trireme::activations
