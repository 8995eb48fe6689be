#include "headfit/certify/certificate.hpp"

#include "headfit/base/errors.hpp"
#include "headfit/certify/folds.hpp"

namespace headfit {

CertificateRows::CertificateRows(Index n)
    : leak(Vector<double>::Zero(n)),
      distortion(Vector<double>::Zero(n)),
      tv(Vector<double>::Zero(n)),
      stray(Vector<double>::Zero(n)),
      largest_logit(Vector<double>::Zero(n)),
      verdict(static_cast<std::size_t>(n), Verdict::undecided),
      leak_column(static_cast<std::size_t>(n), -1),
      weakest_column(static_cast<std::size_t>(n), -1),
      highest_column(static_cast<std::size_t>(n), -1),
      lowest_column(static_cast<std::size_t>(n), -1) {}

namespace {

using detail::BiasedFold;
using detail::CompareFold;
using detail::in_double;
using detail::MassFold;
using detail::Norms;
using detail::Scan;

template <class T>
void scan_rows(const Scan<T>& scan, const LogitSource<T>& source, const Run& run) {
  if (scan.bias.is_set()) {
    stream_tiles(source, run, [&] { return BiasedFold<T>(scan); });
  } else if (scan.options.mass) {
    stream_tiles(source, run, [&] { return MassFold<T>(scan); });
  } else {
    stream_tiles(source, run, [&] { return CompareFold<T>(scan); });
  }
}

template <class T>
void refuse_other_logits(const LogitSource<T>& source) {
  if (source.q.rotary.table || source.k.rotary.table || source.sinks) {
    throw InputError("a certificate takes no rotary positions and no sinks");
  }
}

void check_shapes(const Target& target, Index heads, Index rows, Index cols) {
  if (heads != 1 || rows != target.n || cols != target.n) {
    throw InputError("Q and K must be single matrices with one row for each of the ", target.n,
                     " rows of A; got ", rows, " and ", cols);
  }
}

// The errors of Q and K: none at all, or one for each row.
void check_errors(std::span<const double> errors, Index n, const char* name) {
  if (!errors.empty() && static_cast<Index>(errors.size()) != n) {
    throw InputError("the errors of ", name, " must be one for each of the ", n, " rows; got ",
                     errors.size());
  }
  for (const double e : errors) {
    if (!(e >= 0)) {
      throw InputError("the errors of ", name, " must be at least 0; got ", e);
    }
  }
}

Target under_mask(Target target, const Mask& mask) {
  target.mask = mask;
  return target;
}

// Scans the rows that are still undecided once more, in double.
template <class T>
void rescan_in_double(const Scan<T>& scan, const Run& run) {
  std::vector<Index> open;
  for (Index place = 0; place < scan.source.row_count(); ++place) {
    const Index i = scan.source.row_at(place);
    if (scan.out.verdict[static_cast<std::size_t>(i)] == Verdict::undecided) open.push_back(i);
  }
  scan.out.rescanned = static_cast<Index>(open.size());
  if (open.empty()) return;
  LogitSource<double> source;
  source.q = in_double(scan.source.q);
  source.k = in_double(scan.source.k);
  source.scale = scan.source.scale;
  source.mask = scan.source.mask;
  source.rows = std::span<const Index>(open);
  const Scan<double> again{scan.target, source,          scan.bias,    scan.path,
                           scan.norms,  scan.tolerances, scan.options, scan.out};
  scan_rows(again, source, run);
}

}  // namespace

template <class T>
CertificateRows certify_logits(const Target& target, const LogitSource<T>& source,
                               const Tolerances& tolerances, const CertifyOptions& options,
                               const Run& run) {
  tolerances.check();
  check_shapes(target, source.q.count, source.q.rows, source.k.rows);
  refuse_other_logits(source);
  validate_target(under_mask(target, source.mask), any_sum, run);
  check_errors(options.errors.q, target.n, "Q");
  check_errors(options.errors.k, target.n, "K");
  const StandardArithmetic arithmetic;
  CertificateRows out(target.n);
  Norms norms = detail::bound_norms(source, options.errors);
  if (!options.kernel.is_exact()) norms.bias_max = detail::largest_bias(source.bias, target.n);
  out.q_norm = detail::largest_with_errors(norms.q, options.errors.q);
  out.k_norm = detail::largest_with_errors(norms.k, options.errors.k);
  // The scan computes products. The soft-cap and a bias are applied to their enclosures.
  const detail::LogitPath path(options.kernel, source.scale, source.softcap, source.q.cols);
  LogitSource<T> products = source;
  products.softcap = 0;
  products.bias = {};
  const Scan<T> scan{target, products, source.bias, path, norms, tolerances, options, out};
  if (options.passes != Passes::in_double) {
    scan_rows(scan, products, run);
    for (Index place = 0; place < source.row_count(); ++place) {
      out.rounding_bound = std::max(out.rounding_bound, scan.radius(source.row_at(place)));
    }
  }
  if constexpr (!std::is_same_v<T, double>) {
    if (options.passes != Passes::first) rescan_in_double(scan, run);
  }
  if (target.n > 0) out.max_logit = out.largest_logit.maxCoeff();
  return out;
}

template CertificateRows certify_logits(const Target&, const LogitSource<float>&, const Tolerances&,
                                        const CertifyOptions&, const Run&);
template CertificateRows certify_logits(const Target&, const LogitSource<double>&,
                                        const Tolerances&, const CertifyOptions&, const Run&);

}  // namespace headfit
