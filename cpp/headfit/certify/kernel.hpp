// What a kernel may make of an exact logit, from the product of Q and K to the weight in the
// softmax: the places where it rounds, and the enclosure of its result.
#pragma once

#include <optional>

#include "headfit/base/number_format.hpp"
#include "headfit/certify/rounding.hpp"

namespace headfit {

// Where a kernel rounds. The logits are softcap(scale * Q K^T) + bias. By default nothing is
// rounded: the kernel gives the exact logits.
struct Kernel {
  bool float32 = false;  // all arithmetic is in float32, in any order, or in sums of fewer bits
  std::optional<NumberFormat> product = {};  // q.k, before it is multiplied by the scale
  std::optional<NumberFormat> logits = {};  // after the scale, and after each step of the soft-cap
  std::optional<NumberFormat> bias = {};  // after a bias is added
  std::optional<NumberFormat> weights = {};  // of the softmax; if missing, nothing is said of them
  bool fused = false;  // each of the first three roundings may also be left out
  int sum_bits = float32_bits;  // that sums of products keep; where fewer, they truncate

  bool is_exact() const { return !(float32 || product || logits || bias || weights); }
};

namespace detail {

// Upper bounds of the norms of a query and of keys, and of the errors that they come with.
struct NormBounds {
  double q, k;
  double q_error = 0, k_error = 0;

  // A bound of the change of scale * q.k through the errors, and through the kernel's own arithmetic.
  double radius(double scale, Index depth, const Kernel& kernel) const {
    const double factor = std::abs(scale);
    double radius = 0;
    if (q_error > 0 || k_error > 0) {
      radius = product_above(factor, q_error, k) + product_above(factor, q + q_error, k_error);
    }
    if (kernel.float32) {
      radius += float32_kernels_radius(scale, depth, kernel.sum_bits, next_up(q + q_error),
                                       next_up(k + k_error));
    }
    return radius * (1 + 8 * std::numeric_limits<double>::epsilon());
  }
};

// What rounding to a format may make of a number that is known to lie between two ends, if it is not
// left out.
inline Enclosure rounded(const Enclosure& x, const std::optional<NumberFormat>& to, bool fused) {
  if (!to) return x;
  const Enclosure y{to->rounded(x.lo), to->rounded(x.hi)};
  return fused ? Enclosure{std::min(x.lo, y.lo), std::max(x.hi, y.hi)} : y;
}

// The logits that a kernel may give, from those that a scan computes. Rounding and the soft-cap are
// monotone functions, so the ends of an enclosure are mapped to ends. That includes the largest of
// many logits without a bias, which are computed with one bound of their errors.
class LogitPath {
 public:
  LogitPath(const Kernel& kernel, double scale, double softcap, Index depth)
      : kernel_(kernel), scale_(scale), softcap_(softcap), depth_(depth) {}

  // Encloses the logit where the scan computed scale * q.k with an error of at most `own`.
  Enclosure logit(double computed, double own, const NormBounds& norms,
                  std::optional<double> bias = {}) const {
    Enclosure x = scaled_product(computed, own, norms);
    x = rounded(x, kernel_.logits);
    if (softcap_ > 0) x = capped(x);
    return bias ? with_bias(x, *bias) : x;
  }

  // The logit as the kernel computes it, if the scan and arithmetic in float32 make no errors.
  double computed(double x, std::optional<double> bias = {}) const {
    const auto at = [](double y, const std::optional<NumberFormat>& to) {
      return to ? to->rounded(y) : y;
    };
    if (kernel_.product) x = at(x / scale_, kernel_.product) * scale_;
    x = at(x, kernel_.logits);
    if (softcap_ > 0) {
      x = at(at(std::tanh(at(x / softcap_, kernel_.logits)), kernel_.logits) * softcap_,
             kernel_.logits);
    }
    return bias ? at(x + *bias, kernel_.bias) : x;
  }

  // Whether some logit of vectors of these norms, and with a bias up to this, may overflow. At a masked
  // position that matters too: a kernel that adds -inf there makes NaN of it.
  bool may_overflow(const NormBounds& norms, double bias) const {
    const double factor = std::abs(scale_), room = 1 + 0x1p-6;
    const double product = room * (product_above(1, next_up(norms.q + norms.q_error),
                                                 next_up(norms.k + norms.k_error)) +
                                   norms.radius(1, depth_, kernel_));
    const double sum = room * product * factor + bias;
    const auto holds = [](const std::optional<NumberFormat>& to, double most) {
      return !to || most < to->largest;
    };
    return !(holds(kernel_.product, product) && holds(kernel_.logits, product * factor) &&
             holds(kernel_.bias, sum) && (!kernel_.float32 || sum < largest32) &&
             norms.radius(scale_, depth_, kernel_) < no_bound);
  }

  const Kernel& kernel() const { return kernel_; }
  double scale() const { return scale_; }
  double softcap() const { return softcap_; }
  // Whether the logits are those of the scan.
  bool is_plain() const { return !(kernel_.product || kernel_.logits || softcap_ > 0); }

 private:
  // Bounds of relative errors in float32: of a product (its factor is rounded too, a division may
  // stand in its place, a factor log2(e) may follow), of tanh, for which 8 units in the last place
  // are assumed, and of a sum. `tiny32` bounds what is lost where subnormal numbers are flushed to
  // zero.
  static constexpr double few32 = 0x1p-21, tanh32 = 0x1p-20, sum32 = 0x1p-20;
  static constexpr double tiny32 = 0x1p-124;
  static constexpr double largest32 = static_cast<double>(std::numeric_limits<float>::max()) / 4;

  Enclosure scaled_product(double computed, double own, const NormBounds& norms) const {
    if (!kernel_.product) {
      return Enclosure::around(computed, next_up(own + norms.radius(scale_, depth_, kernel_)));
    }
    const double factor = std::abs(scale_), product = computed / scale_;
    const double radius = own / factor + norms.radius(1, depth_, kernel_) +
                          std::numeric_limits<double>::epsilon() * std::abs(product);
    Enclosure x = rounded(Enclosure::around(product, radius * (1 + 0x1p-48)), kernel_.product);
    x = times(x, scale_);
    if (kernel_.float32 && !is_normal32(factor)) return Enclosure::unknown();
    return in_float32(x, few32);
  }

  static bool is_normal32(double factor) {
    return factor >= std::numeric_limits<float>::min() && factor < largest32;
  }

  Enclosure capped(Enclosure x) const {
    // Where a product may overflow, it may be infinity minus infinity too, which no cap bounds.
    if (!(x.lo > -no_bound && x.hi < no_bound)) return Enclosure::unknown();
    if (kernel_.float32 && !is_normal32(softcap_)) return Enclosure::unknown();
    x = {next_down(x.lo / softcap_), next_up(x.hi / softcap_)};
    x = rounded(in_float32(x, few32), kernel_.logits);
    x = {widen_down(std::tanh(x.lo)), widen_up(std::tanh(x.hi))};
    x = rounded(in_float32(x, tanh32), kernel_.logits);
    return rounded(in_float32(times(x, softcap_), few32), kernel_.logits);
  }

  Enclosure with_bias(const Enclosure& x, double bias) const {
    if (std::isinf(bias)) return Enclosure::exactly(bias);  // -inf: the bias masks the position
    if (x.lo == no_bound) return x;
    Enclosure sum{next_down(x.lo + bias), next_up(x.hi + bias)};
    if (kernel_.float32) {
      const double most = std::max(std::abs(x.lo), std::abs(x.hi)) + std::abs(bias);
      if (!(most < largest32)) return Enclosure::unknown();
      sum = {next_down(sum.lo - sum32 * most - tiny32), next_up(sum.hi + sum32 * most + tiny32)};
    }
    return rounded(sum, kernel_.bias);
  }

  Enclosure rounded(const Enclosure& x, const std::optional<NumberFormat>& to) const {
    return detail::rounded(x, to, kernel_.fused);
  }

  // The product with a factor other than 0.
  static Enclosure times(const Enclosure& x, double factor) {
    const double a = x.lo * factor, b = x.hi * factor;
    return {next_down(std::min(a, b)), next_up(std::max(a, b))};
  }

  // The same after an operation in float32 with this relative error, if the kernel computes in
  // float32. An end that may overflow there is infinite.
  Enclosure in_float32(const Enclosure& x, double relative) const {
    if (!kernel_.float32) return x;
    const auto moved = [&](double y) { return relative * std::abs(y) + tiny32; };
    const double lo = -x.lo > largest32 ? -no_bound : x.lo;
    const double hi = x.hi > largest32 ? no_bound : x.hi;
    return {std::isinf(lo) ? lo : next_down(lo - moved(lo)),
            std::isinf(hi) ? hi : next_up(hi + moved(hi))};
  }

  Kernel kernel_;
  double scale_, softcap_;
  Index depth_;
};

// How far the weights that a kernel computes and rounds are from the exact softmax of its logits,
// up to a factor that all weights of a row share: by at most `relative` times themselves plus
// `absolute` times the smallest exact weight on the support.
struct WeightErrors {
  double relative, absolute;

  // The quotient of a weight and one that is at least the smallest on the support.
  Enclosure quotient(const Enclosure& exact) const {
    const double change = relative + absolute;
    if (!(change < 1)) return {0, no_bound};
    const double lost_lo = absolute * std::max(1.0, exact.lo);
    const double lost_hi = absolute * std::max(1.0, exact.hi);
    return {std::max(0.0, (exact.lo * (1 - relative) - lost_lo) / (1 + change) * (1 - 0x1p-48)),
            (exact.hi * (1 + relative) + lost_hi) / (1 - change) * (1 + 0x1p-48)};
  }
};

// In float32 a weight is assumed to be within 2^-14 of the exact one: the difference to the maximum
// is rounded, which costs at most 2^-17 where the weight does not underflow, and an exponential is
// wrong by at most 2^-16. Kernels that go by blocks of 16 keys or more multiply by an exponential
// again when the maximum grows, with an error of at most 2^-22 and a rounding of the product. Then
// the weight is rounded to the format, before or after it is divided by the sum. What is lost below
// the normal numbers of the format, or of float32 where subnormal numbers are flushed to zero, is
// relative to the largest weight or to the sum of all. `least` and `most` enclose the extreme
// logits on the support, `off` the largest of the others.
inline WeightErrors weight_errors(const NumberFormat& to, const Enclosure& least,
                                  const Enclosure& most, const Enclosure& off, double supported,
                                  double keys) {
  const double top_lo = std::max(most.lo, off.lo), top_hi = std::max(most.hi, off.hi);
  const double sum =
      supported * std::exp(most.hi - top_lo) + (keys - supported) * std::exp(off.hi - top_lo);
  const double lost = std::ldexp(1.0, to.min_exponent - to.digits) + 0x1p-124;
  const double absolute = lost * std::max(1.0, sum) * std::exp(top_hi - least.lo);
  const double softmax = 0x1p-14 + keys * 0x1.4p-26;
  const double relative = (1 + softmax) * (1 + std::ldexp(1.0, -to.digits)) - 1;
  if (!(absolute < no_bound)) return {relative, no_bound};  // also where it is NaN
  return {relative * (1 + 0x1p-30), absolute * (1 + 0x1p-30)};
}

}  // namespace detail
}  // namespace headfit
