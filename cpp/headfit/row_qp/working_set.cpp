#include "headfit/row_qp/working_set.hpp"

#include <Eigen/Jacobi>
#include <algorithm>
#include <cmath>

#include "headfit/base/checkpoint.hpp"
#include "headfit/simd/column_products.hpp"

namespace headfit {

namespace {
// A refined multiplier has the wrong sign if it is below minus this, relative to the largest.
constexpr double sign_noise = 1e-11;
}  // namespace

void DifferenceFactor::reserve(int dim) {
  if (dim_ != dim) {
    dim_ = dim;
    columns_.setZero(2 * dim, round_up(dim, product_group));
    product_.setZero(columns_.cols());
  }
  size_ = 0;
}

// Computes x -= [Q; C] Q' (upper half of x), a few columns at a time, so that they are still in the
// nearest cache when they are subtracted.
void DifferenceFactor::project(Eigen::VectorXd& x) {
  // At d = 96 fewer columns at a time take longer, and so do all at once.
  constexpr int width = 16;
  for (int j = 0; j < size_; j += width) {
    const int count = std::min(width, size_ - j);
    const auto h = product_.head(count);
    column_products(columns_.col(j).data(), columns_.rows(), dim_, count, x.data(),
                    product_.data());
    const int rows = dim_ + j + count;
    x.head(rows).noalias() -= columns_.block(0, j, rows, count) * h;
  }
}

// Repeats the Gram-Schmidt step while it cancels much of the vector. One repeat restores
// orthogonality, unless z is rounding noise; then one more does not matter. The step is repeated if
// the norm falls below 0.3 times its value, about two bits. With one bit (0.5) most steps were
// repeated once the basis was nearly full.
double DifferenceFactor::reorthogonalize(double before, Eigen::VectorXd& x) {
  double norm = x.head(dim_).norm();
  for (int pass = 0; pass < 2 && norm < 0.3 * before; ++pass) {
    project(x);
    before = norm;
    norm = x.head(dim_).norm();
  }
  return norm;
}

double DifferenceFactor::orthogonalize(const Eigen::VectorXd& v, Eigen::VectorXd& x) {
  x.head(dim_) = v;
  x.segment(dim_, size_).setZero();
  project(x);
  return reorthogonalize(v.norm(), x);
}

// The basis vector that was removed is still stored behind the last column. Its part of v becomes
// part of z again.
double DifferenceFactor::orthogonalize_after_removal(int column, const Eigen::VectorXd& v,
                                                     Eigen::VectorXd& x) {
  const auto left = columns_.col(size_);
  const double h = left.head(dim_).dot(v);
  x.head(dim_ + size_ + 1) += h * left.head(dim_ + size_ + 1);
  double* c = x.data() + dim_;
  std::copy(c + column + 1, c + size_ + 1, c + column);
  return reorthogonalize(v.norm(), x);
}

void DifferenceFactor::append(const Eigen::VectorXd& x, double norm) {
  auto column = columns_.col(size_);
  column.head(dim_ + size_) = (1.0 / norm) * x.head(dim_ + size_);
  column[dim_ + size_] = 1.0 / norm;
  column.segment(dim_ + size_ + 1, dim_ - size_ - 1).setZero();
  ++size_;
}

void DifferenceFactor::remove(int column) {
  // Rotate the columns of Q until only the last of them depends on this column of D.
  const int row = dim_ + column;
  Eigen::JacobiRotation<double> turn;
  for (int j = column; j + 1 < size_; ++j) {
    turn.makeGivens(columns_(row, j + 1), columns_(row, j));
    columns_.topRows(dim_ + j + 2).applyOnTheRight(j + 1, j, turn);
    double* entry = &columns_(row, j);
    std::copy(entry + 1, entry + (j - column) + 2, entry);
    columns_(dim_ + j + 1, j) = 0.0;
  }
  --size_;
}

void DifferenceFactor::subtract(int j, int t) {
  columns_.row(dim_ + t).head(size_) += columns_.row(dim_ + j).head(size_);
}

void DifferenceFactor::add_least_norm(Eigen::VectorXd& w, Eigen::VectorXd& q) const {
  auto h = product_.head(size_);
  h.noalias() = coefficients().transpose() * w.head(size_);
  q.noalias() += basis() * h;
}

void DifferenceFactor::least_squares(const Eigen::VectorXd& v, Eigen::VectorXd& w) const {
  auto h = product_.head(size_);
  h.noalias() = basis().transpose() * v;
  w.head(size_).noalias() = coefficients() * h;
}

void WorkingSet::reserve(int dim, int constraints) {
  if (q.size() != dim) {
    for (auto* v : {&q, &u, &column_sign_, &d_, &z_, &w_}) v->setZero(dim);
    x_.setZero(2 * dim);
    member_.setZero(dim, groups);
    differences_.resize(dim, dim);
    column_.reserve(dim);
  }
  factor.reserve(dim);
  place_.reserve(constraints);
  clear();
}

void WorkingSet::clear() {
  base_.fill(-1);
  base_u.fill(0.0);
  column_.clear();
  place_.clear();
  factor.clear();
  q.setZero();
  updates_ = 0;
}

void WorkingSet::choose_bases(const ConstraintPool& pool) {
  for (int constraint = 0; constraint < pool.size(); ++constraint) {
    if (base_[pool.group(constraint)] < 0) make_base(pool, constraint);
  }
}

void WorkingSet::make_base(const ConstraintPool& pool, int constraint) {
  base_[pool.group(constraint)] = constraint;
  base_u[pool.group(constraint)] = 0.0;
  place_[constraint] = is_base;
}

double WorkingSet::signed_multiplier(int constraint) const {
  if (place_[constraint] >= 0) return u[place_[constraint]];
  for (int g = 0; g < groups; ++g) {
    if (base_[g] == constraint) return base_u[g];
  }
  return 0.0;
}

void WorkingSet::set_column(const ConstraintPool& pool, int column, int constraint,
                            double multiplier) {
  place_[constraint] = column;
  u[column] = multiplier;
  column_sign_[column] = pool.is_equality(constraint) ? 0.0 : pool.sign(constraint);
  for (int g = 0; g < groups; ++g) member_(column, g) = pool.group(constraint) == g;
}

void WorkingSet::append(const ConstraintPool& pool, int constraint, double multiplier,
                        const Eigen::VectorXd& x, double norm) {
  set_column(pool, factor.size(), constraint, multiplier);
  column_.push_back(constraint);
  factor.append(x, norm);
  ++updates_;
}

void WorkingSet::erase_column(int column) {
  factor.remove(column);
  column_.erase(column_.begin() + column);
  const auto close = [&](double* x) {
    std::copy(x + column + 1, x + factor.size() + 1, x + column);
  };
  close(u.data());
  close(column_sign_.data());
  for (int g = 0; g < groups; ++g) close(member_.col(g).data());
  for (int i = column; i < factor.size(); ++i) place_[column_[i]] = i;
  ++updates_;
}

// If the base of a group is dropped, the first column of the group becomes its base. The column is
// subtracted from the other columns of the group in the factor, which makes them differences to the
// new base.
void WorkingSet::drop(const ConstraintPool& pool, int constraint) {
  int column = place_[constraint];
  if (column == is_base) {
    const int g = pool.group(constraint);
    base_[g] = -1;
    for (int i = 0; i < factor.size(); ++i) {
      if (pool.group(column_[i]) != g) continue;
      if (base_[g] < 0) {
        base_[g] = column_[i];
        base_u[g] = u[i];
        column = i;
      } else {
        factor.subtract(i, column);
      }
    }
    if (base_[g] >= 0) place_[base_[g]] = is_base;
  }
  place_[constraint] = inactive;
  if (column >= 0) erase_column(column);
}

void WorkingSet::difference(const ConstraintPool& pool, int constraint,
                            Eigen::VectorXd& out) const {
  out = pool.key(constraint) - pool.key(base_[pool.group(constraint)]);
}

double WorkingSet::free_offset(const ConstraintPool& pool, int group) const {
  const int constraint = base_[group];
  return constraint < 0 ? 0.0 : pool.active_value(constraint) + pool.key(constraint).dot(q);
}

// What follows recomputes the state of a working set from the keys, to remove errors of updates.

void WorkingSet::gather(const ConstraintPool& pool) {
  for (int i = 0; i < factor.size(); ++i) {
    differences_.col(i) = pool.key(column_[i]) - pool.key(base_[pool.group(column_[i])]);
  }
}

double WorkingSet::correct(const ConstraintPool& pool, int constraint, Eigen::VectorXd& x) {
  gather(pool);
  difference(pool, constraint, d_);
  auto z = x.head(q.size());
  for (int round = 0; round < 2; ++round) {
    z = d_;
    z.noalias() += differences() * x.segment(q.size(), factor.size());
    factor.project(x);
  }
  return z.norm();
}

// Computes the point of least norm for which every active constraint is an equality, and its
// multipliers, by two rounds of residual correction. This removes the errors that updates have
// gathered.
void WorkingSet::solve(const ConstraintPool& pool) {
  const int columns = factor.size();
  gather(pool);
  for (int i = 0; i < columns; ++i) {
    d_[i] = pool.active_value(base_[pool.group(column_[i])]) - pool.active_value(column_[i]);
  }
  // Starts from 0, since the old q may have a part outside the span of the active differences,
  // which would stay.
  q.setZero();
  for (int round = 0; round < 2; ++round) {
    w_.head(columns) = d_.head(columns);
    w_.head(columns).noalias() -= differences().transpose() * q;
    factor.add_least_norm(w_, q);
  }
  for (int round = 0; round < 2; ++round) {
    z_ = -q;
    z_.noalias() -= differences() * u.head(columns);
    factor.least_squares(z_, w_);
    u.head(columns) += w_.head(columns);
  }
  for (int g = 0; g < groups; ++g) base_u[g] = -members(g).dot(u.head(columns));
}

void WorkingSet::refine(const ConstraintPool& pool) {
  if (needs_rebuild()) rebuild(pool);
  Checkpoints checkpoints;
  for (;;) {
    solve(pool);
    checkpoints.after(12 * q.size() * factor.size());
    double largest = 0.0;
    double least = 0.0;
    int wrong = -1;
    for_each_active([&](int constraint) {
      const double multiplier = pool.sign(constraint) * signed_multiplier(constraint);
      largest = std::max(largest, std::abs(multiplier));
      if (pool.is_equality(constraint) || multiplier >= least) return;
      least = multiplier;
      wrong = constraint;
    });
    if (wrong < 0 || least >= -sign_noise * largest) return;
    drop(pool, wrong);
    choose_bases(pool);
  }
}

void WorkingSet::rebuild(const ConstraintPool& pool) {
  constexpr double dependency_tol = 1e-15;
  factor.clear();
  Checkpoints checkpoints;
  int kept = 0;
  for (std::size_t i = 0; i < column_.size(); ++i) {
    const int constraint = column_[i];
    difference(pool, constraint, d_);
    const double norm = factor.orthogonalize(d_, x_);
    checkpoints.after(4 * q.size() * factor.size());
    const double terms =
        pool.largest_norm() * (1.0 + x_.segment(q.size(), factor.size()).lpNorm<1>());
    if (factor.size() == q.size() || norm <= dependency_tol * terms) {
      place_[constraint] = inactive;
      continue;
    }
    set_column(pool, kept, constraint, u[i]);
    column_[kept++] = constraint;
    factor.append(x_, norm);
  }
  column_.resize(kept);
  updates_ = 0;
}

}  // namespace headfit
