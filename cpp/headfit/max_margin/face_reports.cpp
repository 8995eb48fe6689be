#include "headfit/max_margin/face_reports.hpp"

#include "headfit/max_margin/check_keys.hpp"
#include "headfit/max_margin/violators.hpp"

namespace headfit {
namespace {

// Finds the constraints that one row's query violates, in a scan of all keys.
class OneRowScan {
 public:
  OneRowScan(const Target& target, const MatrixView<double>& keys, Index row)
      : target_(target), keys_(keys), row_(row) {}

  void operator()(std::span<const double> q, double threshold, int limit,
                  std::vector<Violator>& out) {
    // The queries are a view in which every row is q. The stream is asked for row `row_`, so that
    // it uses the mask and the support of this row.
    LogitSource<double> source;
    source.q = {q.data(), 1, target_.n, keys_.cols(), 0, 0};
    source.k = {keys_.data(), 1, keys_.rows(), keys_.cols(), keys_.size(), keys_.outerStride()};
    source.mask = target_.mask;
    source.rows = std::span<const Index>(&row_, 1);
    const std::span<const double> thresholds(&threshold, 1);
    const std::span<std::vector<Violator>> lists(&out, 1);
    find_violators({target_, source, thresholds, limit, lists}, Run{1, {}});
  }

 private:
  const Target& target_;
  const MatrixView<double>& keys_;
  Index row_;
};

}  // namespace

std::vector<FaceReport> face_reports(const Target& target, const MatrixView<double>& keys,
                                     std::span<const Index> rows, const Run& run) {
  check_keys(target, keys);
  check_entries(target, run);
  for (const Index i : rows) {
    if (i < 0 || i >= target.n || target.row_columns(i).empty()) {
      throw InputError("rows must be rows of A that are not empty; got " + std::to_string(i));
    }
  }
  std::vector<FaceReport> reports(rows.size());
  const KeyView bare{keys.data(), keys.rows(), keys.cols(), keys.outerStride()};
  const KeyNorms norms(bare);
  const KeyView view = norms.add_to(bare);
  parallel_tasks(static_cast<Index>(rows.size()), run, [&] {
    return [&, solver = RowSolver()](Index place) mutable {
      const Index i = rows[static_cast<std::size_t>(place)];
      OneRowScan scan(target, keys, i);
      reports[static_cast<std::size_t>(place)] =
          face_test(solver, view, target.row_columns(i), RowSettings{}, scan);
    };
  });
  return reports;
}

}  // namespace headfit
