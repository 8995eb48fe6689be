// The certificate: a statement about all n^2 entries of an attention matrix that
// holds in exact arithmetic for the stored numbers. It knows nothing of methods.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "headfit/base/number_format.hpp"
#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

enum class Verdict : std::int8_t { holds = 0, fails = 1, undecided = 2 };

struct Tolerances {
  double leak = 0.05;
  double distortion = 0.1;
  double max_logit = std::numeric_limits<double>::infinity();  // of |logit|, unmasked entries
};

// Bounds of the Euclidean errors of the rows of Q and K, where these stand for exact
// products that were rounded (a module's X W_Q and X W_K); empty: Q and K are exact.
struct InputErrors {
  std::span<const double> q;
  std::span<const double> k;
};

// Which logits the statement is about. The exact products of the stored Q and K; or all that
// lie within the errors of Q and K; or all that kernels working in float32 may give (see
// float32_kernels_radius in rounding.hpp; tensor cores that truncate are not covered); or any of
// these rounded to a format, where a logit that overflows fails its row.
struct Reading {
  InputErrors errors = {};
  bool float32_accumulation = false;
  std::optional<NumberFormat> logits = {};
};

// What is found for each row. Leak and distortion are proved upper bounds; tv and
// stray mass are computed values, as exact as the logits they come from.
struct CertificateRows {
  explicit CertificateRows(Index n);

  Vector<double> leak;
  Vector<double> distortion;
  Vector<double> tv;
  Vector<double> stray;
  std::vector<Verdict> verdict;
  std::vector<Offset> leak_column;        // the largest logit off the support, -1: none
  std::vector<Offset> weakest_column;     // the smallest logit on the support
  std::vector<Offset> highest_column;     // the support entry most above its target
  std::vector<Offset> lowest_column;      // the support entry most below its target
  double q_norm = 0;                      // largest norms, bounds from above
  double k_norm = 0;
  double max_logit = 0;                   // largest |logit| over unmasked entries, computed
  double rounding_bound = 0;              // largest bound of a logit's error in the first scan
  Index rescanned = 0;                    // rows that needed the scan in double
};

// Scans every logit of scale * Q K^T under the mask against the target, which is checked but for
// the sums of its rows (a view, its arrays may have been changed since), in T first
// and in double for the rows that this leaves undecided. O(n) memory beside Q and K.
// With `mass` it also fills tv and stray. Source: one head, all rows.
template <class T>
CertificateRows certify_logits(const Target& target, const LogitSource<T>& source,
                               const Reading& reading, const Tolerances& tolerances, bool mass,
                               const Run& run);

// The same for a given attention matrix, its entries taken as they are stored.
template <class T>
CertificateRows certify_matrix(const Target& target, const Heads<T>& matrix, const Mask& mask,
                               const Tolerances& tolerances, const Run& run);

}  // namespace headfit
