#include <trireme/extensions/server/server_sync.h>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/optim/flat_optimizer.h>

#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <utility>

namespace trireme::parallel::server {
namespace {

const char* name_of(at::ScalarType type) {
  return type == at::kFloat ? "float32" : type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : nullptr;
}

// Adds its lifetime to a sum of seconds.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum) {}
  ~Timed() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  double& sum_;
  Clock::time_point start_ = Clock::now();
};

// Returns the parameters that send single rows. Errors: InputError for a pattern that matches none.
std::set<std::string> sparse_parameters(const std::vector<bucket::FlatParameters*>& buffers,
                                        const std::vector<std::string>& patterns) {
  std::set<std::string> names;
  for (const std::string& pattern : patterns) {
    const std::regex regex(pattern);
    bool any = false;
    for (const bucket::FlatParameters* buffer : buffers) {
      for (const bucket::TensorInfo& tensor : buffer->layout().tensors()) {
        if (!std::regex_search(tensor.name, regex, std::regex_constants::match_continuous)) {
          continue;
        }
        if (tensor.sizes.size() < 2) {
          throw InputError("server",
                           concat("parallel.sync.sparse_rows: \"", pattern, "\" matches \"", tensor.name,
                                  "\", which has no rows: ", tensor.sizes.size(), " dimensions"),
                           "Patterns usually name the weights of embeddings.");
        }
        any = true;
        names.insert(tensor.name);
      }
    }
    if (!any) {
      throw InputError(
          "server",
          concat("parallel.sync.sparse_rows: \"", pattern, "\" matches no parameter from the beginning of its name"),
          "trireme inspect lists the names of a checkpoint's parameters; an example is transformer.wte.");
    }
  }
  return names;
}

} // namespace

// Has memory from the first acquire(), which fetches all arrays, until drop().
class ServerSync::Store final : public bucket::StateStore {
 public:
  explicit Store(ServerSync& sync) : sync_(sync) { sync_.store_ = this; }
  ~Store() override { sync_.store_ = nullptr; }
  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device device) override {
    described_.push_back({arrays, device});
    return std::ssize(described_) - 1;
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    if (!memory_) {
      fetch();
    }
    return memory_->acquire(buffer, bucket);
  }
  void release(int64_t buffer, int64_t bucket, bool modified) override { memory_->release(buffer, bucket, modified); }
  void prefetch(int64_t, int64_t) override {}
  void drop() { memory_.reset(); }
  // Returns elements of a parameter in an optimizer array; undefined if the buffer has no such array.
  at::Tensor part(const std::string& array, int64_t parameter, int64_t begin, int64_t numel) {
    const auto [b, i] = sync_.places_[parameter];
    const bucket::FlatLayout& layout = sync_.buffers_[b]->layout();
    const bool has_master = sync_.buffers_[b]->scalar_type() != at::kFloat;
    const auto index = array == optim::kMasterState
                           ? (has_master ? 0 : -1)
                           : (has_master ? 1 : 0) + std::find(sync_.arrays_.begin(), sync_.arrays_.end(), array) -
                                 sync_.arrays_.begin();
    if (index < 0) {
      return {};
    }
    const int64_t bucket = layout.bucket_of(i);
    const int64_t in_bucket = layout.slot_of(i).begin - layout.buckets()[bucket].begin + begin;
    const at::Tensor values =
        memory_->acquire(number_of(b), bucket).at(static_cast<size_t>(index)).slice(0, in_bucket, in_bucket + numel);
    memory_->release(number_of(b), bucket, true);
    return values;
  }
  void fetch() {
    memory_ = bucket::make_memory_store([](int64_t numel, at::ScalarType type, at::Device device) {
      return torch::zeros({numel}, at::TensorOptions(type).device(device));
    });
    for (const auto& [arrays, device] : described_) {
      memory_->add(arrays, device);
    }
    if (sync_.servers_ && !sync_.loads_) { // a loaded checkpoint contains the arrays
      const torch::NoGradGuard no_grad;
      sync_.servers_->for_each_array(
          [this](const std::string& array, int64_t parameter, int64_t begin, const at::Tensor& values) {
            if (at::Tensor here = part(array, parameter, begin, values.numel()); here.defined()) {
              here.copy_(values);
            }
          });
    }
  }

 private:
  // Buffers without arrays (fp32, SGD without momentum) are not in the store.
  int64_t number_of(int64_t buffer) const {
    int64_t number = 0;
    for (int64_t b = 0; b < buffer; ++b) {
      number += sync_.buffers_[b]->scalar_type() != at::kFloat || !sync_.arrays_.empty() ? 1 : 0;
    }
    return number;
  }

  ServerSync& sync_;
  std::vector<std::pair<std::vector<bucket::StoredArray>, at::Device>> described_;
  std::unique_ptr<bucket::StateStore> memory_;
};

ServerSync::ServerSync(ReduceGroups groups, const ServerOptions& options, WorkerOptions worker)
    : GradientSync(std::move(groups)), options_(options), worker_(std::move(worker)) {}

ServerSync::~ServerSync() {
  if (servers_) {
    servers_->leave();
  }
}

std::unique_ptr<bucket::StateStore> ServerSync::make_store() {
  return std::make_unique<Store>(*this);
}

void ServerSync::connect(const std::function<Parameter(const bucket::TensorInfo&)>& of, const nlohmann::json& optimizer,
                         const std::vector<std::string>& arrays) {
  arrays_ = arrays;
  const std::set<std::string> sparse = sparse_parameters(buffers_, options_.sparse_rows);
  std::map<int64_t, std::pair<int64_t, int64_t>> by_place; // in the order of the model
  for (int64_t b = 0; b < std::ssize(buffers_); ++b) {
    for (int64_t i = 0; i < buffers_[b]->count(); ++i) {
      by_place[buffers_[b]->layout().tensors()[i].place] = {b, i};
    }
  }
  std::vector<ParameterInfo> parameters;
  for (const auto& [place, at] : by_place) {
    places_.push_back(at);
    const bucket::TensorInfo& tensor = buffers_[at.first]->layout().tensors()[at.second];
    const Parameter known = of(tensor);
    ParameterInfo& parameter = parameters.emplace_back();
    parameter.weight_decay = known.weight_decay;
    parameter.lr_factor = known.lr_factor;
    parameter.whole = known.needs_norm;
    parameter.sparse = sparse.count(tensor.name) > 0;
    parameter.name = tensor.name;
    parameter.shape = tensor.sizes;
    const char* const type = name_of(buffers_[at.first]->scalar_type());
    if (type == nullptr) {
      throw InputError("server", concat("parameter \"", tensor.name, "\" is ", buffers_[at.first]->scalar_type()),
                       "Parameter servers hold fp32, bf16 and fp16.");
    }
    parameter.type = type;
  }
  servers_ = std::make_unique<Servers>(worker_, std::move(parameters), optimizer);
  const auto values = [this](int64_t parameter) { return value(parameter); };
  if (worker_.worker == 0 && !servers_->initialized()) {
    servers_->initialize(values);
  }
  servers_->pull(values);
}

int64_t ServerSync::after_step() {
  if (!options_.together()) {
    return 1;
  }
  const int64_t clock = servers_->clock();
  return clock - std::exchange(taken_, clock);
}

at::Tensor ServerSync::value(int64_t parameter) const {
  const auto [b, i] = places_[parameter];
  return buffers_[b]->parameter(i);
}

at::Tensor ServerSync::gradient(int64_t parameter) const {
  const auto [b, i] = places_[parameter];
  return buffers_[b]->was_used(i) ? buffers_[b]->parameter(i).grad() : at::Tensor();
}

const StepAgreement& ServerSync::agreement() const {
  return options_.together() ? on_servers_ : on_own_gradients_;
}

// The servers compute the norm.
at::Tensor ServerSync::ServersAgreement::squared_norm(StepGradients&, bool) const {
  return torch::zeros({1}, torch::kFloat64);
}

// Pushes the gradients. A worker that is too late gets its own loss, and no norm.
LossAndNorm ServerSync::ServersAgreement::agree(const LossAndNorm& own) const {
  const Timed timed(sync_.exposed_);
  sync_.check_beginning();
  const Servers::Sum sum =
      sync_.servers_->push([this](int64_t parameter) { return sync_.gradient(parameter); }, own.loss, own.stop);
  sync_.members_ = sum.members;
  return {static_cast<float>(sum.loss), sum.squared_norm, sum.stop}; // fp32, the type of losses
}

bool ServerSync::end_step(bool taken) {
  const Timed timed(exposed_);
  check_beginning();
  Servers::Step step;
  if (taken) {
    step.lr = values_->lr();
    step.factor = values_->grad_scale();
    if (const auto beta1 = values_->beta1(), beta2 = values_->beta2(); beta1 && beta2) {
      step.betas = {*beta1, *beta2};
    }
  }
  const auto values = [this](int64_t parameter) { return value(parameter); };
  if (options_.together()) {
    servers_->commit(step, values);
  } else {
    servers_->push_pull([this](int64_t parameter) { return gradient(parameter); }, 0, step, values);
  }
  check_beginning();
  begun_ = true;
  values_->set_steps(servers_->steps());
  if (store_ != nullptr) {
    store_->drop();
  }
  return false; // masters are on the servers
}

// loaded() follows when the tensors have been read.
void ServerSync::load_state(const nlohmann::json&, int64_t) {
  loads_ = true;
}

int64_t ServerSync::loaded(const std::string& id, int64_t step) {
  const torch::NoGradGuard no_grad;
  const bool is_this = servers_->load(
      {id, step, values_->steps()}, [this](int64_t parameter) { return value(parameter); },
      [this](const std::string& array, int64_t parameter, int64_t begin, at::Tensor values) {
        if (const at::Tensor here = store_->part(array, parameter, begin, values.numel()); here.defined()) {
          values.copy_(here);
        }
      });
  store_->drop();
  loads_ = false;
  begin();
  return is_this ? std::max(step, servers_->step()) : servers_->step();
}

void ServerSync::begin_at(int64_t step) {
  begin();
  rest_.skip_to(step);
}

void ServerSync::begin() {
  values_->set_steps(servers_->steps());
  taken_ = servers_->clock();
  begun_ = true;
}

// Without the checkpoint, this worker would count steps and choose samples from the beginning.
void ServerSync::check_beginning() const {
  if (!begun_ && servers_->loads() != 0) {
    throw InputError("server", concat("worker ", worker_.worker, " has loaded no checkpoint, but other workers have"),
                     "Give all workers the same checkpoint, and check that its folder exists on this worker's host.");
  }
}

void ServerSync::fetch() {
  store_->fetch();
  values_->set_steps(servers_->steps());
}

SyncFactory worker_sync(const ServerOptions& options, WorkerOptions worker) {
  if (std::ssize(worker.addresses) != options.servers) {
    throw InputError("server",
                     concat(worker.addresses.size(), " addresses for ", options.servers, " parameter servers"),
                     "Give one address per server.");
  }
  SyncFactory out{.kind = "server", .make = nullptr, .worker = worker.worker, .workers = worker.workers};
  out.make = [options, worker = std::move(worker)](const ReduceGroups& groups) {
    return std::make_unique<ServerSync>(groups, options, worker);
  };
  return out;
}

} // namespace trireme::parallel::server
