// The way in for C++ programs: each call against what the rooms compute, and its errors.
#include <cmath>

#include "check.hpp"
#include "headfit/headfit.hpp"

using namespace headfit;

namespace {

using Weights = Eigen::SparseMatrix<double, Eigen::RowMajor>;

// Each token attends to itself and to the one 7 places on, by 1 to 3.
Weights two_a_row(Index n) {
  Weights weights(n, n);
  for (Index i = 0; i < n; ++i) {
    weights.coeffRef(i, i) = 0.25;
    weights.coeffRef(i, (i + 7) % n) = 0.75;
  }
  return weights;
}

// The softmax of the logits in double. Those of the core are rounded to float32 with errors of up to
// about 1e-5.
Matrix<double> softmax(const Head& head) {
  Matrix<double> m = head.scale * head.q.cast<double>() * head.k.cast<double>().transpose();
  m = (m.colwise() - m.rowwise().maxCoeff()).array().exp();
  const Vector<double> sums = m.rowwise().sum();
  return m.array().colwise() / sums.array();
}

void check_head(const Pattern& pattern, const Weights& weights, const Head& head,
                const Tolerances& tolerances) {
  const CertificateRows rows = certify(pattern, head, tolerances);
  CHECK(rows.holds());
  const Matrix<double> expected = softmax(head);
  CHECK((attention(head).cast<double>() - expected).cwiseAbs().maxCoeff() < 1e-4);
  const Matrix<double> target = weights;
  const Matrix<double> ratio = (target.array() > 0).select(expected.array() / target.array(), 1);
  for (Index i = 0; i < target.rows(); ++i) {
    double low = 1e300, high = 0, off = 0, least = 1;
    for (Index j = 0; j < target.cols(); ++j) {
      if (target(i, j) == 0) {
        off = std::max(off, expected(i, j));
        continue;
      }
      low = std::min(low, ratio(i, j));
      high = std::max(high, ratio(i, j));
      least = std::min(least, expected(i, j));
    }
    CHECK_THAT(high / low <= 1 + rows.distortion(i) + 1e-9, "row ", i);
    CHECK_THAT(off / least <= rows.leak(i) + 1e-9, "row ", i);
  }
  Matrix<float> values(target.rows(), 2);
  for (Index i = 0; i < values.size(); ++i) values.data()[i] = static_cast<float>(i % 11) - 5;
  const Matrix<double> applied = expected * values.cast<double>();
  CHECK((attend(head, values).cast<double>() - applied).cwiseAbs().maxCoeff() < 1e-3);
}

TEST(a_learned_head_is_certified) {
  const Weights weights = two_a_row(60);
  const Pattern pattern(weights);
  CHECK(pattern.tokens() == 60);
  const Tolerances tolerances{0.05, 0.1};
  const std::optional<Head> head = find_head(pattern, 6, tolerances, 3);
  CHECK(head.has_value());
  if (head) check_head(pattern, weights, *head, tolerances);
  CHECK(!find_head(pattern, 1, tolerances));
}

TEST(a_projected_head_is_certified) {
  const Weights weights = two_a_row(40);
  const Pattern pattern(weights);
  const Tolerances tolerances{0.3, 2.0};
  check_head(pattern, weights, projected_head(pattern, 1024, tolerances, 1), tolerances);
  CHECK(!certify(pattern, projected_head(pattern, 2, tolerances), tolerances).holds());
}

TEST(a_causal_mask_reaches_every_call) {
  Mask causal;
  causal.right = 0;
  Weights weights(5, 5);
  for (Index i = 0; i < 5; ++i) weights.coeffRef(i, i / 2) = 1;
  const Pattern pattern(weights, causal);
  const std::optional<Head> head = find_head(pattern, 4);
  CHECK(head && certify(pattern, *head).holds());
  if (head)
    CHECK((attention(*head).triangularView<Eigen::StrictlyUpper>().toDenseMatrix().isZero(0)));
  weights.coeffRef(1, 0) = 0.5;
  weights.coeffRef(1, 4) = 0.5;
  CHECK_THROWS(TargetError, "row 1", Pattern(weights, causal));
}

TEST(zeros_are_absent_and_errors_name_their_place) {
  Weights weights = two_a_row(30);
  weights.coeffRef(3, 5) = 0;
  CHECK(Pattern(weights).target().nonzeros() == 60);
  weights.coeffRef(3, 5) = -0.5;
  CHECK_THROWS(TargetError, "row 3", Pattern{weights});
  CHECK_THROWS(InputError, "square", Pattern(Weights(3, 4)));
  const Pattern pattern(two_a_row(30));
  CHECK_THROWS(InputError, "dim", projected_head(pattern, 0));
  // Before the head is allocated.
  CHECK_THROWS(InputError, "leak", projected_head(pattern, Index(1) << 40, Tolerances{7, 0.1}));
  CHECK_THROWS(InputError, "dim", find_head(pattern, 0));
  CHECK_THROWS(InputError, "leak", find_head(pattern, 4, {2.0, 0.1}));
  const Head head = projected_head(pattern, 4, {0.3, 2.0});
  CHECK_THROWS(InputError, "30 keys; got 29", attend(head, Matrix<float>(29, 1)));
}

TEST(masks_of_heads_are_checked) {
  Head head{Matrix<float>::Ones(3, 2), Matrix<float>::Ones(3, 2)};
  const std::vector<Offset> offsets{0, 1, 2, 3};
  const std::vector<Column> outside{0, 3, 1};
  const Index length = 4;
  const auto check = [&](const char* message) {
    CHECK_THROWS(InputError, message, attention(head));
    CHECK_THROWS(InputError, message, attend(head, Matrix<float>::Ones(3, 1)));
  };
  head.mask.sparse_offsets = offsets.data();
  check("");
  head.mask.sparse_columns = outside.data();
  check("row 1");
  head.mask = {};
  head.mask.key_lengths = &length;
  check("key_lengths");
  head.mask = {};
  for (const Index side : {Index(-1), std::numeric_limits<Index>::max()}) {
    head.mask.left = side;
    check("window");
  }
}

}  // namespace
