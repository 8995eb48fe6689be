#include "headfit/index/format.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "headfit/base/errors.hpp"
#include "headfit/base/number_format.hpp"

namespace headfit {
namespace {

// The nearest number with three bits of mantissa, of exponents from -6 on.
float to_quarter(float x) {
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7f800000u);
  const float step = std::max(power, 0x1p-6f) * 0x1p-3f;
  return std::rint(x / step) * step;
}

}  // namespace

IndexFormat::IndexFormat(const std::string& dtype) {
  const std::string numbers = dtype.substr(0, dtype.find('-'));
  if (numbers == "float32") {
    kind_ = Kind::single;
  } else if (numbers == "float16") {
    kind_ = Kind::half;
  } else if (numbers == "bfloat16") {
    kind_ = Kind::brain;
  } else if (numbers == "float8_e4m3fn") {
    kind_ = Kind::quarter;
    largest_ = 448;
  } else if (numbers == "int8" || numbers == "int4") {
    kind_ = Kind::whole;
    largest_ = numbers == "int8" ? 127 : 7;
  } else {
    throw InputError("there is no index of ", dtype);
  }
  scales_keys_ = numbers == dtype;
  if (!scales_keys_ && (largest_ == 0 || dtype != numbers + "-unscaled")) {
    throw InputError("there is no index of ", dtype);
  }
}

void IndexFormat::round(Matrix<float>& x, Vector<float>& scales, bool scaled) const {
  scales.setOnes(x.rows());
  if (kind_ == Kind::half) {
    constexpr auto most = static_cast<float>(NumberFormat::float16().largest);
    x = x.cwiseMax(-most).cwiseMin(most).cast<Eigen::half>().cast<float>();
  } else if (kind_ == Kind::brain) {
    x = x.cast<Eigen::bfloat16>().cast<float>();
  }
  if (largest_ == 0) return;
  for (Index i = 0; i < x.rows(); ++i) {
    auto row = x.row(i).array();
    float scale = 1;
    if (scaled) {
      // Below the least normal number a scale would lose its bits.
      const float least = std::numeric_limits<float>::min();
      scale = static_cast<float>(Eigen::bfloat16(std::max(row.abs().maxCoeff() / largest_, least)));
    }
    row = (row / scale).max(-largest_).min(largest_);
    row = kind_ == Kind::whole ? row.rint().eval() : row.unaryExpr(&to_quarter).eval();
    row *= scale;
    scales[i] = scale;
  }
}

}  // namespace headfit
