#include <trireme/parallel/pipeline/split_backward.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <unordered_map>

namespace trireme::pipeline {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;

// All nodes reachable from the roots, those nearer to the inputs first.
std::vector<NodePtr> inputs_first(const edge_list& roots) {
  std::vector<NodePtr> order;
  std::unordered_set<Node*> seen;
  struct Visit {
    NodePtr node;
    size_t next;
  };
  for (const Edge& root : roots) {
    std::vector<Visit> stack;
    if (seen.insert(root.function.get()).second) {
      stack.push_back({root.function, 0});
    }
    while (!stack.empty()) {
      Visit& top = stack.back();
      if (top.next == top.node->num_outputs()) {
        order.push_back(top.node);
        stack.pop_back();
        continue;
      }
      const Edge& edge = top.node->next_edge(top.next++);
      if (edge.is_valid() && seen.insert(edge.function.get()).second) {
        stack.push_back({edge.function, 0});
      }
    }
  }
  return order;
}

void execute(const edge_list& roots, const Tensors& grads, bool keep_graph, const edge_list& outputs) {
  Engine::get_default_engine().execute(roots, grads, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/true,
                                       outputs);
}

} // namespace

SplitBackward::SplitBackward(edge_list roots, Tensors grads, const Tensors& inputs,
                             const std::unordered_set<Node*>& parameters)
    : roots_(std::move(roots)), grads_(std::move(grads)) {
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) {
      inputs_.push_back(input);
    }
  }
  find_joints(parameters);
}

void SplitBackward::find_joints(const std::unordered_set<Node*>& parameters) {
  std::unordered_set<Node*> inputs;
  for (const at::Tensor& input : inputs_) {
    inputs.insert(torch::autograd::impl::gradient_edge(input).function.get());
  }
  std::unordered_set<Node*> on_path;                        // an input is reachable from here
  std::unordered_map<Node*, std::unordered_set<Node*>> own; // parameters reached without another node on the path
  std::unordered_map<Node*, NodePtr> accumulators;
  std::unordered_map<Node*, int> joints_of; // how many joints lead to a parameter
  for (const auto& node : inputs_first(roots_)) {
    if (parameters.count(node.get()) != 0) {
      own[node.get()] = {node.get()};
      accumulators[node.get()] = node;
      continue;
    }
    bool path = inputs.count(node.get()) != 0;
    std::unordered_set<Node*> reached;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) {
        continue;
      }
      if (on_path.count(edge.function.get()) != 0) {
        path = true;
      } else if (const auto found = own.find(edge.function.get()); found != own.end()) {
        reached.insert(found->second.begin(), found->second.end());
      }
    }
    if (!path) {
      own[node.get()] = std::move(reached);
      continue;
    }
    on_path.insert(node.get());
    if (!reached.empty()) {
      Joint joint{node, {}, {}};
      for (Node* parameter : reached) {
        joint.parameters.emplace_back(accumulators.at(parameter), 0);
        ++joints_of[parameter];
      }
      joints_.push_back(std::move(joint));
    }
  }
  whole_ = on_path.empty();
  for (const auto& [parameter, count] : joints_of) {
    whole_ = whole_ || count > 1;
  }
  // No joint reaches nodes off the path.
  for (const Edge& root : roots_) {
    whole_ = whole_ || on_path.count(root.function.get()) == 0;
  }
}

void SplitBackward::run_inputs() {
  if (whole_) {
    execute(roots_, grads_, false, {});
    return;
  }
  edge_list wanted;
  for (const at::Tensor& input : inputs_) {
    wanted.push_back(torch::autograd::impl::gradient_edge(input));
  }
  for (const Joint& joint : joints_) {
    for (uint32_t i = 0; i < joint.node->num_inputs(); ++i) {
      wanted.emplace_back(joint.node, i);
    }
  }
  Tensors captured = Engine::get_default_engine().execute(roots_, grads_, /*keep_graph=*/true, /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, wanted);
  auto next = captured.begin();
  for (at::Tensor& input : inputs_) {
    input.mutable_grad() = *next++;
  }
  for (Joint& joint : joints_) {
    joint.grads.assign(next, next + joint.node->num_inputs());
    next += joint.node->num_inputs();
  }
}

void SplitBackward::run_weights(const std::function<void(Node* parameter)>& before) {
  if (whole_) {
    return;
  }
  for (auto last = joints_.rbegin(); last != joints_.rend();
       ++last) { // in backward's order, so that buckets fill as usual
    Joint& joint = *last;
    edge_list roots;
    Tensors grads;
    for (uint32_t i = 0; i < joint.grads.size(); ++i) {
      if (joint.grads[i].defined()) {
        roots.emplace_back(joint.node, i);
        grads.push_back(joint.grads[i]);
      }
    }
    if (!roots.empty()) {
      if (before) {
        before(joint.parameters.front().function.get());
      }
      execute(roots, grads, false, joint.parameters);
    }
    joint = {};
  }
  joints_.clear();
  roots_.clear();
}

} // namespace trireme::pipeline
