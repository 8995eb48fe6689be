// For rows that cannot be had: is their support a face of the keys at all?
#pragma once

#include <vector>

#include "headfit/base/threads.hpp"
#include "headfit/pattern/target.hpp"
#include "headfit/row_qp/face_witness.hpp"

namespace headfit {

// One report a row asked for, see face_test. A scan of all keys a round and row.
std::vector<FaceReport> face_reports(const Target& target, const MatrixView<double>& keys,
                                     const Mask& mask, std::span<const Index> rows, const Run& run);

}  // namespace headfit
