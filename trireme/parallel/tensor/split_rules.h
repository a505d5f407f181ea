#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Which parameters of an ordinary model are split over tensor-parallel ranks, and how. No torch here: the
/// configuration is read into these.
namespace trireme::tensor {

/// Who reports the errors of this folder.
inline constexpr std::string_view kPart = "tensor parallel";

/// One rule. Of several that match a parameter the first counts, as in DeepSpeed's layer_specs.
struct SplitRule {
  enum class Kind {
    /// The rows of a weight [out, in], and its bias: the output of a rank is its part of the features, for a layer that
    /// is split by rows.
    column,
    /// The same, and the outputs are joined: every rank has all of them. For a head whose logits go into an ordinary
    /// loss. The bias is not split.
    column_gathered,
    /// The columns of a weight [out, in]: takes a part of the features from a layer that is split by columns, and sums
    /// over the ranks. The bias
    /// is not split, and added once.
    row,
    /// The rows of an embedding [vocabulary, width]. Where a head uses the same weight (tied), its logits are joined.
    vocabulary,
    /// Stays whole, whatever later rules say.
    skip
  };
  Kind kind = Kind::column;
  /// An ECMAScript regular expression that must match from the beginning of a parameter's name ("h.0.query.weight") or,
  /// for a `weight`, of its module's ("h.0.query"); what follows the match does not matter: end it with $ if it should.
  /// So do Python's re.match and DeepSpeed.
  std::string pattern;
  /// column and row: parts are multiples of so many features (the width of a head, say), but for what the whole leaves
  /// over at the end.
  int64_t grain = 1;
  /// column: the rows are so many equal blocks one behind the other (3: queries, keys and values of one projection),
  /// and a rank has its part of each.
  int64_t blocks = 1;
};

/// "column", "column, gathered", "row", "vocabulary", "skip".
constexpr std::string_view kind_name(SplitRule::Kind kind) {
  switch (kind) {
    case SplitRule::Kind::column:
      return "column";
    case SplitRule::Kind::column_gathered:
      return "column, gathered";
    case SplitRule::Kind::row:
      return "row";
    case SplitRule::Kind::vocabulary:
      return "vocabulary";
    case SplitRule::Kind::skip:
      return "skip";
  }
  return "?";
}

/// DeepSpeed's section tensor_parallel.
struct TensorParallelKeys {
  /// Ranks that share each layer. 1: none is split.
  int64_t size = 1;
  std::vector<SplitRule> rules = {};
};

/// Which rules count for which names.
class RuleMatches {
 public:
  /// Errors: InputError for an expression that is none.
  explicit RuleMatches(const std::vector<SplitRule>& rules);
  ~RuleMatches();

  /// The index of the first rule that matches any of the names of one parameter; -1: none does.
  int first(const std::vector<std::string>& names);
  /// Call after the last parameter. Errors: InputError for a rule that matched nothing, naming the nearest of
  /// `modules`, and for one that never came first.
  void check_all_used(const std::vector<std::string>& modules) const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

} // namespace trireme::tensor
