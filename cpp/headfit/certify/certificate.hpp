// The certificate: a statement about all n^2 entries of an attention matrix that
// holds in exact arithmetic for the stored numbers. It knows nothing of methods.
#pragma once

#include <algorithm>
#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/certify/kernel.hpp"
#include "headfit/pattern/target.hpp"

namespace headfit {

enum class Verdict : std::int8_t { holds = 0, fails = 1, undecided = 2 };

// Bounds of the Euclidean errors of the rows of Q and K, where these stand for exact
// products that were rounded (a module's X W_Q and X W_K); empty: Q and K are exact.
struct InputErrors {
  std::span<const double> q;
  std::span<const double> k;
};

// Which passes are made: one in the type of the arrays, then one in double of the rows that are
// still undecided. Where rows are split among machines, each scan is made on its own: first the
// first one of all rows, then the second one of the undecided rows.
enum class Passes { both, first, in_double };

// Which logits the certificate is about, and what it reports. By default these are the exact
// products of the stored Q and K.
struct CertifyOptions {
  // All logits of queries and keys that lie within these errors of the stored ones.
  InputErrors errors = {};
  // All logits, and weights if it has a format for them, that a kernel may make of the above. A
  // logit that overflows the format it is rounded to fails its row.
  Kernel kernel = {};
  // Whether to compute total variation and stray mass too, which takes the exponential of every
  // logit.
  bool mass = false;
  Passes passes = Passes::both;
};

// What is found for each row. Leak and distortion are proved upper bounds. The total variation
// and the stray mass (the attention off the support) are computed, as exactly as the logits.
struct CertificateRows {
  explicit CertificateRows(Index n);

  // Whether every row is proved to be within the tolerances.
  bool holds() const {
    return std::all_of(verdict.begin(), verdict.end(),
                       [](Verdict row) { return row == Verdict::holds; });
  }

  Vector<double> leak;
  Vector<double> distortion;
  Vector<double> tv;
  Vector<double> stray;
  Vector<double> largest_logit;           // bounds of the largest unmasked |logit|
  std::vector<Verdict> verdict;
  std::vector<Offset> leak_column;        // the largest logit off the support; -1 for none
  std::vector<Offset> weakest_column;     // the smallest logit on the support
  std::vector<Offset> highest_column;     // the support entry most above its target
  std::vector<Offset> lowest_column;      // the support entry most below its target
  double q_norm = 0;                      // largest norms, bounds from above
  double k_norm = 0;
  double max_logit = 0;                   // the largest of largest_logit
  double rounding_bound = 0;              // largest bound of a logit's error in the first scan
  Index rescanned = 0;                    // rows that needed the scan in double
};

// Scans every logit under the mask of `source`, first in T and then, for the rows that are still
// undecided, in double. The source is one head, which may have a softcap and a bias; rotary
// positions and sinks are refused. If the source is about some of its rows, all different, then
// nothing is found for the others. A part of a list of rows that begins and ends at multiples of
// `row_granule` (stream.hpp) gets the results that it has in the whole list, bit for bit. The
// arrays of the target are a view that somebody may have changed since they were last checked, so
// they are checked here again, under the mask of `source` (target.mask is not read); rows may sum
// to anything. Takes O(n) memory besides Q, K and packed keys.
template <class T>
CertificateRows certify_logits(const Target& target, const LogitSource<T>& source,
                               const Tolerances& tolerances, const CertifyOptions& options,
                               const Run& run);

// The same for a given attention matrix under target.mask, its entries taken as they are stored.
// A matrix tells nothing about logits, so tolerances.max_logit must be infinite.
template <class T>
CertificateRows certify_matrix(const Target& target, const Heads<T>& matrix,
                               const Tolerances& tolerances, const Run& run);

// The same for a sparse matrix, in O(entries) time: what it does not store is exactly zero.
CertificateRows certify_sparse_matrix(const Target& target, const CompressedRows& matrix,
                                      const Tolerances& tolerances, const Run& run);

}  // namespace headfit
