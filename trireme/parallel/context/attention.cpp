#include <trireme/parallel/context/attention.h>

#include <trireme/base/error.h>
#include <trireme/parallel/context/ring.h>
#include <trireme/parallel/context/ulysses.h>

#include <ATen/ATen.h>

#include <string>

namespace trireme::context {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& next) {
  throw InputError("context", concat("attention: ", what), next);
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
           const AttentionOptions& options, const at::Tensor& key_padding) {
  if (q.dim() != 4 || k.dim() != 4 || k.sizes() != v.sizes() || q.size(0) != k.size(0) || q.size(2) != k.size(2) ||
      q.size(3) != k.size(3)) {
    refuse(concat("q must be [B, A, t, D], k and v [B, K, t, D]; got ", q.sizes(), ", ", k.sizes(), " and ", v.sizes(),
                  "."),
           "Give each rank's tokens of all three.");
  }
  if (k.size(1) == 0 || q.size(1) % k.size(1) != 0) {
    refuse(concat(k.size(1), " heads of keys and values do not divide ", q.size(1), " heads of queries."),
           "Choose numbers of heads that divide.");
  }
  if (!q.is_floating_point() || q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type()) {
    refuse(concat("q, k and v must have one floating type, got ", c10::toString(q.scalar_type()), ", ",
                  c10::toString(k.scalar_type()), " and ", c10::toString(v.scalar_type()), "."),
           "Convert them.");
  }
  if (q.device() != k.device() || q.device() != v.device() ||
      (key_padding.defined() && key_padding.device() != q.device())) {
    refuse("q, k, v and key_padding are on different devices.", "Move them to one.");
  }
  if (!(options.dropout >= 0 && options.dropout <= 1)) {
    refuse(concat("a dropout of ", options.dropout, " is not a probability."), "Choose one from 0 to 1.");
  }
  if (options.window < 0 || (options.window > 0 && !options.causal)) {
    refuse(concat("a window of ", options.window, " tokens", options.causal ? "." : " without the causal mask."),
           "Choose at least 1 token, with causal attention, or 0 for no window.");
  }
  if (options.window > 0 && options.kind == Kind::ring && ranks.size() > 1) {
    refuse(concat("ring attention over ", ranks.size(), " ranks has no window, and a query sees only ", options.window,
                  " of ", q.size(2) * ranks.size(), " tokens."),
           "Choose Ulysses (parallel.context_kind), one context rank, or sequences no longer than the window.");
  }
  if (key_padding.defined() && options.causal) {
    refuse("causal attention does not take key_padding.",
           "Pad at the end, which causal attention does not see, and ignore the loss there.");
  }
  if (key_padding.defined() && (key_padding.scalar_type() != at::kBool || key_padding.dim() != 2 ||
                                key_padding.size(0) != q.size(0) || key_padding.size(1) != q.size(2))) {
    refuse(concat("key_padding must be bool [", q.size(0), ", ", q.size(2), "], got ",
                  c10::toString(key_padding.scalar_type()), " ", key_padding.sizes(), "."),
           "Pass this rank's part of it, true for real tokens.");
  }
  if (options.kind == Kind::ring && options.causal && ranks.size() > 1 && q.size(2) % 2 != 0) {
    refuse(concat("each of ", ranks.size(), " ranks has ", q.size(2),
                  " tokens; with causal ring attention these are two chunks of equal length."),
           concat("Make 2 x ", ranks.size(), " divide the sequence's length (take_tokens() cuts it)."));
  }
}

} // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                     const AttentionOptions& given, const at::Tensor& key_padding) {
  AttentionOptions options = given;
  if (q.dim() == 4 && options.window >= q.size(2) * ranks.size()) {
    options.window = 0; // every query sees all tokens up to it
  }
  check(q, k, v, ranks, options, key_padding);
  if (q.numel() == 0) {
    return q.clone();
  }
  if (ranks.size() == 1) {
    return local_attention(q, k, v, options, key_padding);
  }
  return options.kind == Kind::ring ? ring_attention(q, k, v, ranks, options, key_padding)
                                    : ulysses_attention(q, k, v, ranks, options, key_padding);
}

} // namespace trireme::context
