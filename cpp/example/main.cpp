// Makes a head for a band of three keys per row in C++ alone: the target, the projection of its
// logits, and the certificate. Exits with 0 when the certificate holds.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "headfit/certify/certificate.hpp"
#include "headfit/projection/projection.hpp"

using namespace headfit;

namespace {

struct Band {
  std::vector<Offset> offsets{0};
  std::vector<Column> columns;
  std::vector<double> weights;

  explicit Band(Index n) {
    for (Index i = 0; i < n; ++i) {
      const Index first = std::max<Index>(i - 1, 0), last = std::min(i + 1, n - 1);
      for (Index j = first; j <= last; ++j) {
        columns.push_back(static_cast<Column>(j));
        weights.push_back(1.0 / static_cast<double>(last - first + 1));
      }
      offsets.push_back(static_cast<Offset>(columns.size()));
    }
  }
  Target view() const {
    return {static_cast<Index>(offsets.size()) - 1, offsets.data(), columns.data(), weights.data()};
  }
};

int show_a_band() {
  const Index n = 256, d = 1024;
  const Tolerances tolerances{0.3, 2.0};
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const Run all_cores;

  const Band band(n);
  const TargetSummary summary = validate_target(band.view(), 1e-9, all_cores);
  Matrix<float> q(n, d), k(n, d);
  project_identity<float>(band.view(), tolerances, {Sketch::rademacher, /*seed=*/1, scale}, q, k,
                          all_cores);

  LogitSource<float> logits;
  logits.q = {q.data(), 1, n, d, n * d, d};
  logits.k = {k.data(), 1, n, d, n * d, d};
  logits.scale = scale;
  const CertificateRows rows = certify_logits(band.view(), logits, tolerances, {}, all_cores);

  const auto holding = std::count(rows.verdict.begin(), rows.verdict.end(), Verdict::holds);
  std::printf("band of %td tokens, %td nonzeros a row at most, head size %td\n", n, summary.per_row,
              d);
  std::printf("leak <= %.4g, distortion <= %.4g, certified for %td of %td rows\n",
              rows.leak.maxCoeff(), rows.distortion.maxCoeff(), static_cast<Index>(holding), n);
  return holding == n ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return show_a_band();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
