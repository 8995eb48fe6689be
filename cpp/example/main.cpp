// Makes two heads whose attention is a band of three keys per row: the learned one, which is small,
// and that of the paper's proof. Both are certified, and the small one averages values. Exits with 0
// when both certificates hold.
#include <algorithm>
#include <cstdio>
#include <exception>

#include "headfit/headfit.hpp"

using namespace headfit;

namespace {

Pattern band(Index n) {
  Eigen::SparseMatrix<double, Eigen::RowMajor> weights(n, n);
  for (Index i = 0; i < n; ++i) {
    const Index first = std::max<Index>(i - 1, 0), last = std::min(i + 1, n - 1);
    for (Index j = first; j <= last; ++j) {
      weights.insert(i, j) = 1.0 / static_cast<double>(last - first + 1);
    }
  }
  return Pattern(weights);
}

bool is_certified(const Pattern& pattern, const Head& head, const Tolerances& tolerances) {
  const CertificateRows rows = certify(pattern, head, tolerances);
  std::printf("head size %4td: leak <= %.4f, distortion <= %.4f, %s\n", head.q.cols(),
              rows.leak.maxCoeff(), rows.distortion.maxCoeff(),
              rows.holds() ? "certified" : "not certified");
  return rows.holds();
}

int show_a_band() {
  const Index n = 256;
  const Pattern pattern = band(n);

  const Tolerances tight{0.05, 0.1};  // leak and distortion
  const std::optional<Head> learned = find_head(pattern, 4, tight);
  if (!learned) {
    std::puts("no head of size 4 was found");
    return 1;
  }
  const Tolerances loose{0.3, 2.0};
  const Head projected = projected_head(pattern, 1024, loose);
  const bool learned_holds = is_certified(pattern, *learned, tight);
  const bool projected_holds = is_certified(pattern, projected, loose);

  // Values that tell their place: token 100 sees the mean place of its three keys.
  const Matrix<float> places = Vector<float>::LinSpaced(n, 0, static_cast<float>(n - 1));
  const Matrix<float> means = attend(*learned, places);
  std::printf("token 100 attends to %.2f of itself and to the mean place %.2f\n",
              static_cast<double>(attention(*learned)(100, 100)),
              static_cast<double>(means(100, 0)));
  return learned_holds && projected_holds ? 0 : 1;
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
