#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Rules that split the parameters of an ordinary model over tensor-parallel ranks. No torch, because the configuration
/// is read into these.
namespace trireme::tensor {

/// Component name in the errors of this folder.
inline constexpr std::string_view kPart = "tensor parallel";

/// One rule. The first rule that matches a parameter applies, as in DeepSpeed's layer_specs.
struct SplitRule {
  enum class Kind {
    /// Splits the rows of a weight [out, in], and its bias: a rank's output is its part of the features, for a layer
    /// that is split by rows.
    column,
    /// The same, and all-gathers the outputs, for a head whose logits are the input of an ordinary loss. The bias is
    /// not split.
    column_gathered,
    /// Splits the columns of a weight [out, in]: takes a part of the features from a layer
    /// that is split by columns, and sums over the ranks. The bias is not split, and added
    /// once.
    row,
    /// Splits the rows of an embedding [vocabulary, width]. The logits of a tied head are
    /// gathered.
    vocabulary,
    /// Does not split, whatever later rules say.
    skip
  };
  Kind kind = Kind::column;
  /// An ECMAScript regular expression, matched from the beginning of a parameter's name ("h.0.query.weight") or, for a
  /// `weight`, of its module's ("h.0.query"). Text after the match is ignored, as in Python's re.match and DeepSpeed;
  /// end the pattern with $ to match to the end.
  std::string pattern;
  /// column and row: parts are multiples of this many features (the width of a head, say), except for a remainder at
  /// the end.
  int64_t grain = 1;
  /// column: number of equal blocks of rows (3: queries, keys and values of one projection); a rank has its part of
  /// each.
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
  /// Number of ranks that split each layer. 1: not split.
  int64_t size = 1;
  std::vector<SplitRule> rules = {};
};

/// Finds the rule for each name.
class RuleMatches {
 public:
  /// Errors: InputError for an invalid expression.
  explicit RuleMatches(const std::vector<SplitRule>& rules);
  ~RuleMatches();

  /// The index of the first rule that matches any of a parameter's names; -1: none does.
  int first(const std::vector<std::string>& names);
  /// Call it after the last parameter. Errors: InputError for a rule that matched nothing, naming the nearest of
  /// `modules`, and for one that was never the first match.
  void check_all_used(const std::vector<std::string>& modules) const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

} // namespace trireme::tensor
