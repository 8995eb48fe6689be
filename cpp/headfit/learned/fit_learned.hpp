// The learned method: queries and keys found together, by annealed and preconditioned steps per row
// on the feasibility loss of row_steps.hpp.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include "headfit/base/number_format.hpp"
#include "headfit/base/threads.hpp"
#include "headfit/learned/scan.hpp"
#include "headfit/logits/source.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

// What the progress function is told after every scan of the logits: once where one of a part of
// the columns finds no row left and one of all columns follows at once.
struct LearnedProgress {
  Index step;
  Index rows_left;  // rows outside the tolerances, as far as the scan looked
  double worst_deficit;  // by how much the worst row misses them, in logit units
};

// The number format that a head is stored in: it holds Q / query_unit and K.
struct Storage {
  NumberFormat format;
  double query_unit = 1;
  double max_norm = 0;  // a bound on max ||q|| max ||k|| of the rounded numbers; 0 for none

  void check() const;
};

// Queries and keys of a given head, each n x d.
struct GivenHead {
  Heads<float> q;
  Heads<float> k;
};

struct LearnedOptions {
  Index dim = 1;
  std::uint64_t seed = 0;
  // Steps at a high temperature before the first slow cooling, unless the head turns out to have
  // so much room that a brief anneal does.
  Index first_hold = 300;
  Index max_steps = 60000;  // in all
  // Looser tolerances, for stages before that of the tolerances themselves. Each stage starts from
  // the head of the last one, with an equal part of the steps that are left, and at most so many.
  std::vector<Tolerances> looser = {};
  Index stage_steps = std::numeric_limits<Index>::max();
  // If at most this share of the rows is left at the end, they get exact queries for the keys: not
  // with a storage or a bound on the logits, nor where the progress function stopped the fit.
  double polished_share = 0;
  // How many reheats may follow a quench that leaves few rows. The first half of them is always
  // made; after that, one that leaves no fewer rows than the one before is the last.
  Index most_reheats = 6;
  double time_limit = std::numeric_limits<double>::infinity();  // in seconds
  double max_norm = 0;  // a bound on max ||q|| max ||k|| before rounding; 0 for none
  // Without it queries and keys stay in float32, in which the method computes.
  std::optional<Storage> storage = {};
  // Queries and keys to start from, with at most `dim` columns; missing columns are filled with small
  // random numbers. If this start fails, random starts follow.
  std::optional<GivenHead> start = {};
  Index warm_steps = 500;  // of the anneal of a given start
  // From so many rows on, candidate lists are kept from scan to scan while the head may have ample
  // room, and averaged curvatures are stored as bfloat16.
  Index many_rows_from = Index(1) << 16;
  // Makes the scans of the logits in place of this machine. It must find what `scan_rows` finds.
  Scanner scanner = {};
  // Returning false stops the fit.
  std::function<bool(const LearnedProgress&)> progress = {};
};

enum class LearnedStatus { Met, StepLimit, TimeLimit, Stopped };

struct LearnedResult {
  LearnedStatus status = LearnedStatus::StepLimit;
  Matrix<float> q;  // logits are plain products q.k
  Matrix<float> k;
  // Rows that a scan of all logits found outside the tolerances, but for those that got an exact
  // query after that.
  std::vector<Index> failed_rows;
  Index polished = 0;  // rows that did
  double worst_deficit = 0;
  Index steps = 0, scans = 0, starts = 0, quenches = 0, reheats = 0, roundings = 0;
  Index restarts = 0;  // quenches after the first of each stage, and reheats
  double seconds = 0;
};

// The distortion must be positive. `Met` allows for the rounding of the scan in float32 to first
// order; the certificate proper is a separate pass. The result does not depend on the number of
// threads.
LearnedResult fit_learned(const Target& target, const Tolerances& tolerances,
                          const LearnedOptions& options, const Run& run);

// The bytes that a fit takes for n rows with k nonzeros on average: per row about
// 20 (k + max(24, 4 k)) + 4 d (d + 10), or 2 d (d + 19) in place of the second term from
// LearnedOptions::many_rows_from rows on. Numbers may be too large for an Index.
double memory_of_fit(double n, double k, double dim);

// Rounds the queries to `storage` while the keys stay as they are. A local search chooses, for
// each row, numbers of the format whose errors cancel in the logits that its tolerances bound.
Matrix<float> round_queries(const Target& target, const Tolerances& tolerances,
                            const GivenHead& head, const Storage& storage, const Run& run);

// Queries for keys that a narrow format holds exactly.
struct NarrowQueries {
  Matrix<float> q;
  std::vector<Index> failed_rows;
  bool fit = false;  // whether every row has a query for these keys; they are rounded then
};

// What rows must meet while queries are made for a narrow format.
struct NarrowOptions {
  Tolerances stored;  // by the check of what is stored
  Tolerances rounded;  // by the search for roundings
  // By exact queries, in turn, each for the rows that have no query otherwise; the first are those
  // that rows of the descent must meet to keep their query.
  std::vector<Tolerances> less;
  std::vector<Tolerances> more;  // by those of rows whose queries do not bear their rounding
  Storage storage;
  double max_norm = 0;  // a bound on max ||q|| max ||k|| of exact queries; 0 for none
};

// Gives rows that the keys do not suit exact queries, and rounds all queries so that their errors
// cancel. The failed rows are those without a query for these keys, or, if there are none, those
// without one that bears its rounding.
NarrowQueries narrow_queries(const Target& target, const NarrowOptions& options,
                             const GivenHead& head, const Run& run);

// What the functions above are made of.
namespace learned {

// Throws unless a head of this shape can be learned for the target.
void check_given(const Target& target, const Tolerances& tolerances, const GivenHead& head,
                 const Run& run);

// One stage of a fit: an annealed descent for these tolerances, whatever `looser` says.
LearnedResult fit_stage(const Target& target, const Tolerances& tolerances,
                        const LearnedOptions& options, const Run& run);

// The norm that queries of these keys may have within a bound on max ||q|| max ||k||; 0 is none.
double longest_query(double max_norm, const Matrix<float>& k);

// Writes the shortest queries of some rows, which keep to the tolerances and to a norm, to `q`.
// Returns the rows that have none.
std::vector<Index> exact_queries(const Target& target, const Tolerances& tolerances,
                                 const Matrix<float>& k, const std::vector<Index>& rows,
                                 double max_query, Matrix<float>& q, const Run& run);

// The rows that miss the tolerances, by one scan of all logits.
std::vector<Index> rows_outside(const Target& target, const Tolerances& tolerances,
                                const Heads<float>& q, const Heads<float>& k, const Run& run);

}  // namespace learned
}  // namespace headfit
