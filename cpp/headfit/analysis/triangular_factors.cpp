#include "headfit/analysis/triangular_factors.hpp"

#include <numeric>
#include <vector>

#include "headfit/base/checkpoint.hpp"

namespace headfit {
namespace {

using Triangle = Matrix<double>;
using Columns = Eigen::MatrixXd;  // a block of rows, stored column by column

// A column whose squared length is below this is treated as zero, so that nothing in a reflection
// underflows. The entries of the matrix are near 1, so such a column is rounding noise.
constexpr double no_length = 1e-280;

// Householder reflections turn the block below an upper triangle into zeros (Golub and Van Loan,
// Matrix Computations, section 5.2): the triangle becomes that of both. The block is overwritten.
// Eigen's decomposition of both together would not know of the zeros in the triangle.
void fold_into(Triangle& triangle, Eigen::Ref<Columns> block) {
  const Index d = triangle.cols();
  for (Index j = 0; j < d; ++j) {
    const auto column = block.col(j);
    const double below = column.squaredNorm();
    if (below < no_length) continue;
    const double top = triangle(j, j);
    const double norm = std::sqrt(top * top + below);
    // The reflection's vector is (first, column).
    const double first = top + std::copysign(norm, top);
    const double factor = 1 / (norm * (norm + std::abs(top)));
    triangle(j, j) = -std::copysign(norm, top);
    for (Index k = j + 1; k < d; ++k) {
      const double along = factor * (first * triangle(j, k) + column.dot(block.col(k)));
      triangle(j, k) -= first * along;
      block.col(k) -= along * column;
    }
  }
}

template <class T>
class TriangleOfRows {
 public:
  // Writes the triangle of the rows that are listed and, unless `centred` is null, that of these
  // rows minus their mean.
  void write(HeadRows<T>& x, Index head, std::span<const Index> rows, double* plain,
             double* centred) {
    const Index d = x.heads().cols;
    // Rows are divided by a power of two near their largest entry, so that squares are finite.
    double largest = 0;
    for (const Index i : rows) {
      largest = std::max(largest, static_cast<double>(x.row(head, i).cwiseAbs().maxCoeff()));
    }
    const double unit = largest > 0 ? std::ldexp(1.0, std::ilogb(largest)) : 1.0;
    mean_.setZero(d);
    factor(x, head, rows, unit, plain);
    if (!centred) return;
    for (const Index i : rows) mean_ += scaled(x.row(head, i), unit);
    if (!rows.empty()) mean_ /= static_cast<double>(rows.size());
    factor(x, head, rows, unit, centred);
  }

 private:
  static Eigen::RowVectorXd scaled(const RowView<T>& row, double unit) {
    return row.template cast<double>() / unit;
  }

  void factor(HeadRows<T>& x, Index head, std::span<const Index> rows, double unit, double* out) {
    const Index d = x.heads().cols;
    const Index most = 4 * d;
    triangle_.setZero(d, d);
    block_.resize(most, d);
    while (!rows.empty()) {
      const Index count = std::min(most, static_cast<Index>(rows.size()));
      for (Index i = 0; i < count; ++i) {
        block_.row(i) = scaled(x.row(head, rows[static_cast<std::size_t>(i)]), unit) - mean_;
      }
      rows = rows.subspan(static_cast<std::size_t>(count));
      fold_into(triangle_, block_.topRows(count));
      checkpoint();
    }
    Eigen::Map<Triangle>(out, d, d) = unit * triangle_;
  }

  Triangle triangle_;
  Columns block_;
  Eigen::RowVectorXd mean_;
};

// The keys of a head that are not padding.
template <class T>
std::vector<Index> existing_keys(const LogitSource<T>& source, Index head) {
  std::vector<Index> found;
  for (Index j = 0; j < source.k.rows; ++j) {
    if (source.mask.exists(head, j)) found.push_back(j);
  }
  return found;
}

}  // namespace

template <class T>
void triangular_factors(const LogitSource<T>& source, const TriangularFactors& out,
                        const Run& run) {
  source.validate();
  if (out.first < 0 || out.count < 0 || out.count > source.q.count - out.first) {
    throw InputError("the heads to factor must be heads of the logits");
  }
  const Index size = source.q.cols * source.q.cols;
  std::vector<Index> all_queries(static_cast<std::size_t>(source.q.rows));
  std::iota(all_queries.begin(), all_queries.end(), Index(0));
  parallel_tasks(out.count, run, [&] {
    return [&, queries = HeadRows<T>(source.q), keys = HeadRows<T>(source.k),
            triangle = TriangleOfRows<T>()](Index place) mutable {
      const Index head = out.first + place;
      triangle.write(queries, head, all_queries, out.queries + place * size, nullptr);
      triangle.write(keys, head / source.group, existing_keys(source, head),
                     out.keys + place * size, out.centred_keys + place * size);
    };
  });
}

template void triangular_factors(const LogitSource<float>&, const TriangularFactors&, const Run&);
template void triangular_factors(const LogitSource<double>&, const TriangularFactors&, const Run&);

}  // namespace headfit
