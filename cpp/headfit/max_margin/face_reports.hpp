// For rows without a feasible query: whether their support is a face of the keys' convex hull.
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/row_qp/face_witness.hpp"

namespace headfit {

// One report for each of `rows`, none of which may be empty; see face_test. Every round of a row
// scans all keys.
std::vector<FaceReport> face_reports(const Target& target, const MatrixView<double>& keys,
                                     std::span<const Index> rows, const Run& run);

}  // namespace headfit
