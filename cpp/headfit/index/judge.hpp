// What an index finds, and how much of the attention that is.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/index/scores.hpp"

namespace headfit {

// For each row. All masses are shares of the mean attention of the query heads.
struct IndexJudgement {
  Vector<double> kept;  // the mass of the keys that are kept anyway
  Vector<double> free;  // how many other keys the row sees
  Vector<double> found;  // the mass of those kept and of the best by score, so many keys in all
  Vector<double> exact;  // the same, of the best by attention
  Vector<double> recall;  // the share of the best free keys by attention that were found
  Vector<double> heaviest;  // 1 where the heaviest free key was found, else 0
  Vector<double> seen;  // the mass of all keys, which is 1 unless sinks take some
};

// Judges what an index finds of `keys` keys, first + window of which are those that are kept anyway,
// even where a row sees fewer of these. Equal scores go to the lower column. An InputError is thrown
// for fewer keys than are kept anyway, here and below.
IndexJudgement judge_index(const LogitSource<float>& passage, const Matrix<float>& maps,
                           const IndexOptions& options, Index keys, const Run& run);

// The same of scores, in the form `sum`, whose products are the logits of other queries and keys with
// the same mask. Their soft-cap and sinks are not used.
IndexJudgement judge_logits(const LogitSource<float>& passage, const LogitSource<float>& scored,
                            const KeptAnyway& kept, Index keys, const Run& run);

// What selections of keys have of the attention beyond the keys that are kept anyway, summed over the
// rows that see more than `keys` keys: for each selection, and last for the best keys. A selection has
// `keys` columns for each row, -1 where there are fewer.
Vector<double> gained_mass(const LogitSource<float>& passage, const Matrix<float>& maps,
                           const IndexOptions& options, Index keys,
                           std::span<const Column> selections, const Run& run);

// Writes for each row the keys that it attends to, rising: those that are kept anyway and the best
// `keys` - first - window of the others. Remaining places get -1.
void select_keys(const LogitSource<float>& passage, const Matrix<float>& maps,
                 const IndexOptions& options, Index keys, Column* out, const Run& run);

// Writes the scores of all keys, -inf where they are masked.
void score_keys(const LogitSource<float>& passage, const Matrix<float>& maps,
                const IndexOptions& options, float* out, const Run& run);

// What an index stores of the queries and keys of a passage: a row for each, to the last bit as the
// functions above use them. The form `sum` has queries of each head, one head below the other.
struct IndexNumbers {
  Matrix<float> queries, keys;
};
IndexNumbers index_numbers(const LogitSource<float>& passage, const Matrix<float>& maps,
                           const IndexOptions& options, const Run& run);

}  // namespace headfit
