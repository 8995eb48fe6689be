#include <cmath>

#include "headfit/base/linear_algebra.hpp"
#include "headfit/descent/row_divergence.hpp"
#include "headfit/index/fit_index.hpp"

namespace headfit {

using index::hidden;
using index::part_of;

double IndexLoss::evaluate(const LogitSource<float>& passage, const Matrix<float>& maps,
                           const IndexOptions& options, std::span<const Index> rows,
                           Matrix<float>* gradient) {
  products_.open(passage, maps, options);
  Sums total;
  if (gradient) {
    gradient->setZero(maps.rows(), maps.cols());
    by_keys_.setZero(passage.k.rows, maps.cols());
  }
  for (std::size_t first = 0; first < rows.size(); first += index::chunk_rows) {
    const auto some =
        rows.subspan(first, std::min<std::size_t>(index::chunk_rows, rows.size() - first));
    products_.read(some);
    read_mean_attention(passage, some, work_, attention_);
    const auto count = static_cast<Index>(some.size());
    for (Index r = 0; r < count; ++r) {
      checkpoint();
      const Sums sums = differentiate(r, attention_.row(r).data(), options);
      total.mass += sums.mass;
      total.loss += sums.loss;
    }
    if (gradient) add_gradient(count, *gradient);
  }
  mass_ = total.mass;
  if (!(mass_ > 0)) return 0;
  if (gradient) {
    const Index size = passage.k.cols;
    for (Index g = 0; g < passage.k.count; ++g) {
      add_moments<float>(passage.k[g], by_keys_,
                         gradient->middleRows((passage.q.count + g) * size, size));
    }
    *gradient /= static_cast<float>(total.mass);
  }
  return total.loss / total.mass;
}

// With a_h the softmax of the products of head h over all keys that are seen, r = sum_h a_h and R its
// sum over F, the loss is that of r / R. By r it is w = P / R - p / r on F, with P the sum of p, and
// by the products of head h a_h (w - sum_F a_h w), with w = 0 outside of F. All that is taken from
// sums is computed relative to the largest products of F.
IndexLoss::Sums IndexLoss::differentiate(Index r, const float* attention,
                                         const IndexOptions& options) {
  const FreeKeys free = products_.free_keys(r, options.kept);
  Sums found;
  free.for_each([&](Index first, Index count) {
    saw_free_keys_ |= (part_of(products_.products(0, r), first, count) != hidden).any();
    found.mass += Eigen::Map<const Eigen::ArrayXf>(attention + first, count).sum();
  });
  if (!(found.mass > 0)) {
    for (Index h = 0; h < products_.heads(); ++h) {
      part_of(products_.products(h, r), 0, products_.cols()) = 0;
    }
    return {};
  }
  log_shares_.resize(products_.heads());
  log_sums_.resize(products_.heads());
  for (Index h = 0; h < products_.heads(); ++h) {
    to_exponentials(h, products_.products(h, r), free, options.form);
  }
  found.loss = find_slopes(r, attention, free, found.mass);
  for (Index h = 0; h < products_.heads(); ++h) {
    to_gradient(h, products_.products(h, r), free, options.form);
  }
  return found;
}

void IndexLoss::to_exponentials(Index h, float* x, const FreeKeys& free, IndexForm form) {
  const auto [begin, end] = free.seen;
  std::fill(x, x + begin, hidden);
  std::fill(x + end, x + products_.cols(), hidden);
  float top = hidden, most = part_of(x, begin, end - begin).maxCoeff(), sum = 0, kept = 0;
  free.for_each(
      [&](Index first, Index count) { top = std::max(top, part_of(x, first, count).maxCoeff()); });
  // Products far below the largest free one count as if they were no further below.
  free.for_each([&](Index first, Index count) {
    auto part = part_of(x, first, count);
    part = (part == hidden).select(0.0f, (part - top).max(-descent::negligible<float>).exp());
    sum += part.sum();
  });
  free.for_kept([&](Index c) { kept += std::exp(x[c] - most); });
  log_sums_[h] = most + std::log(sum * std::exp(top - most) + kept);
  log_shares_[h] = form == IndexForm::sum ? top - log_sums_[h] : 0.0f;
}

double IndexLoss::find_slopes(Index r, const float* attention, const FreeKeys& free, double mass) {
  const float largest = log_shares_.maxCoeff();
  sums_.setZero(products_.cols());
  slopes_.resize(products_.cols());
  double whole = 0;
  free.for_each([&](Index first, Index count) {
    for (Index h = 0; h < products_.heads(); ++h) {
      sums_.segment(first, count) +=
          part_of(products_.products(h, r), first, count) * std::exp(log_shares_[h] - largest);
    }
    whole += sums_.segment(first, count).sum();
  });
  double loss = mass * std::log(whole);
  free.for_each([&](Index first, Index count) {
    const Eigen::Map<const Eigen::ArrayXf> p(attention + first, count);
    const auto of_sum = sums_.segment(first, count);
    loss -= (p > 0).select(p * of_sum.max(std::numeric_limits<float>::min()).log(), 0.0f).sum();
    slopes_.segment(first, count) =
        (of_sum > 0).select(static_cast<float>(mass / whole) - p / of_sum, 0.0f);
  });
  return loss;
}

void IndexLoss::to_gradient(Index h, float* x, const FreeKeys& free, IndexForm form) {
  const bool in_sum = form == IndexForm::sum;
  const float factor = std::exp(log_shares_[h] - log_shares_.maxCoeff());
  const float share = in_sum ? std::exp(log_shares_[h]) : 0.0f;
  float common = 0;
  free.for_each([&](Index first, Index count) {
    common += (part_of(x, first, count) * slopes_.segment(first, count)).sum();
  });
  common *= factor;
  free.for_each([&](Index first, Index count) {
    auto part = part_of(x, first, count);
    part *= factor * slopes_.segment(first, count) - share * common;
  });
  free.for_kept([&](Index c) { x[c] = in_sum ? -common * std::exp(x[c] - log_sums_[h]) : 0; });
  std::fill(x, x + free.seen.begin, 0.0f);
  std::fill(x + free.seen.end, x + products_.cols(), 0.0f);
}

void IndexLoss::add_gradient(Index count, Matrix<float>& gradient) {
  const LogitSource<float>& passage = products_.passage();
  const Index size = passage.q.cols;
  multiply<float>(products_.products(), products_.keys(), by_queries_);
  add_moments<float>(products_.products(), products_.queries(), by_keys_);
  for (Index h = 0; h < passage.q.count; ++h) {
    const Index place = products_.heads() == 1 ? 0 : h * count;
    add_moments<float>(products_.originals(h), by_queries_.middleRows(place, count),
                       gradient.middleRows(h * size, size));
  }
}

}  // namespace headfit
