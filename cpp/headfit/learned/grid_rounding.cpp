#include "headfit/learned/grid_rounding.hpp"

#include "headfit/descent/cholesky.hpp"

namespace headfit::learned {
namespace {

constexpr double below_one = 1 - 1e-6;  // room for rounding, and for a unit that is stored narrower

double square_of(const float* row, Index dim) {
  double sum = 0;
  for (Index f = 0; f < dim; ++f) sum += static_cast<double>(row[f]) * static_cast<double>(row[f]);
  return sum;
}

}  // namespace

double common_radius(double max_norm) {
  return max_norm > 0 ? std::sqrt(max_norm) * below_one : std::numeric_limits<double>::infinity();
}

Grid key_grid(const Storage& storage) {
  return {storage.format, 1, common_radius(storage.max_norm)};
}

Grid query_grid(const Storage& storage, const PaddedRows& rounded_keys) {
  Grid grid{storage.format, storage.query_unit};
  double longest = 0;
  for (Index j = 0; j < rounded_keys.rows(); ++j) {
    longest = std::max(longest, square_of(rounded_keys.row(j), rounded_keys.dim()));
  }
  if (storage.max_norm > 0 && longest > 0) {
    grid.radius = storage.max_norm / std::sqrt(longest) * below_one;
  }
  return grid;
}

// The lower factor of the damped curvature.
void NearestPlane::factorise(const RowSums& sums) {
  double trace = 0;
  for (Index a = 0; a < dim_; ++a) trace += static_cast<double>(sums.curvature_row(a)[a]);
  const double damping = Settings::rounding_damping * trace / static_cast<double>(dim_) + 1e-12;
  descent::cholesky(dim_, [&](Index a, Index b) {
    return static_cast<double>(sums.curvature_row(a)[b]) + (a == b ? damping : 0);
  }, [&](Index a, Index b) { return factor(a, b); }, [&](Index a, Index b, double v) {
    factor(a, b) = a == b ? std::sqrt(std::max(v, damping * 1e-3)) : v / factor(b, b);
  });
  checkpoints_.after(dim_ * dim_ * dim_ / 6);
}

void NearestPlane::round(const RowSums& sums, const Grid& grid, float* row) {
  factorise(sums);
  const double square = square_of(row, dim_), most = grid.radius * grid.radius;
  if (square > most) {
    const auto factor = static_cast<float>(std::sqrt(most / square) * below_one);
    for (Index a = 0; a < dim_; ++a) row[a] *= factor;
  }
  // Chooses errors for which the sum over a of (sum over b >= a of L(b, a) error(b))^2 is small.
  for (Index a = dim_ - 1; a >= 0; --a) {
    double carried = 0;
    for (Index b = a + 1; b < dim_; ++b) {
      carried += factor(b, a) * error_[static_cast<std::size_t>(b)];
    }
    const double x = static_cast<double>(row[a]);
    const double y = grid.rounded(x - carried / factor(a, a));
    error_[static_cast<std::size_t>(a)] = y - x;
    row[a] = static_cast<float>(y);
  }
  shorten(grid, row);
}

// Moves coordinates that were rounded away from zero towards it, one grid point at a time and those
// with the largest errors first, until the row is within the radius of the grid.
void NearestPlane::shorten(const Grid& grid, float* row) {
  const double most = grid.radius * grid.radius;
  for (double square = square_of(row, dim_); square > most; square = square_of(row, dim_)) {
    Index worst = -1;
    for (Index f = 0; f < dim_; ++f) {
      const double error = error_[static_cast<std::size_t>(f)];
      const bool is_away = error * static_cast<double>(row[f]) > 0;
      if (is_away &&
          (worst < 0 || std::abs(error) > std::abs(error_[static_cast<std::size_t>(worst)]))) {
        worst = f;
      }
    }
    if (worst < 0) return;
    const double y = static_cast<double>(row[worst]);
    const double nearer = grid.rounded(y - std::copysign(grid.spacing(y), y));
    error_[static_cast<std::size_t>(worst)] += nearer - y;
    row[worst] = static_cast<float>(nearer);
  }
}

// The loss of the row over its listed columns, and whether it would pass the check of a scan.
GridSearch::Standing GridSearch::trial_standing(const SearchedRow& row) const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Requirements& required = row.required;
  const auto support = static_cast<std::size_t>(required.support_size(row.index));
  const auto share = static_cast<double>(row.lists.share(row.index));
  const auto rounding = static_cast<double>(row.rounding);
  const float* log_weights = required.log_weights(row.index);
  double centre = 0, high = -infinity, low = infinity, lowest = infinity;
  for (std::size_t a = 0; a < support; ++a) {
    const double shifted = trial_[a] - static_cast<double>(log_weights[a]);
    centre += shifted / static_cast<double>(support);
    high = std::max(high, shifted);
    low = std::min(low, shifted);
    lowest = std::min(lowest, trial_[a]);
  }
  const double hinge = static_cast<double>(required.hinge(row.index, static_cast<float>(centre)));
  const auto beyond_bound = [&](double logit) {
    const auto bound = static_cast<double>(required.logit_hinge());
    const double beyond = std::max(0.0, std::abs(logit) - bound);
    return beyond * beyond;
  };
  double loss = 0, top = -infinity, largest = 0;
  for (std::size_t a = 0; a < support; ++a) {
    const double residual = trial_[a] - static_cast<double>(log_weights[a]) - centre;
    loss += residual * residual + beyond_bound(trial_[a]);
    largest = std::max(largest, std::abs(trial_[a]));
  }
  for (std::size_t e = support; e < trial_.size(); ++e) {
    const double excess = std::max(0.0, trial_[e] - hinge);
    loss += share * (excess * excess + beyond_bound(trial_[e]));
    top = std::max(top, trial_[e]);
    largest = std::max(largest, std::abs(trial_[e]));
  }
  const bool meets =
      largest + rounding <= static_cast<double>(required.max_logit()) &&
      high - low + 2 * rounding <= static_cast<double>(required.spread_limit()) &&
      top + 2 * rounding <= lowest - static_cast<double>(required.log_inverse_leak());
  return {loss, meets};
}

void GridSearch::begin(const SearchedRow& row, const float* query) {
  const auto support = row.required.support(row.index), others = row.lists.others(row.index);
  columns_.assign(support.begin(), support.end());
  columns_.insert(columns_.end(), others.begin(), others.end());
  logits_.resize(columns_.size());
  for (std::size_t e = 0; e < columns_.size(); ++e) {
    const float* key = row.keys.row(columns_[e]);
    logits_[e] = static_cast<double>(dot(query, key, row.keys.width()));
  }
  trial_ = logits_;
  best_ = trial_standing(row);
  square_ = square_of(query, row.keys.dim());
}

// Tries a move of one coordinate, or of two at once, and keeps it if the loss falls.
bool GridSearch::try_moves(const SearchedRow& row, const Grid& grid, std::span<const Move> moves,
                           float* query) {
  const auto moved = [&](const Move& move) {
    return grid.rounded(static_cast<double>(query[move.coordinate]) + move.by);
  };
  double square = square_;
  for (const Move& move : moves) {
    const double x = static_cast<double>(query[move.coordinate]), y = moved(move);
    square += y * y - x * x;
  }
  if (square > grid.radius * grid.radius && square > square_) return false;
  checkpoints_.after(static_cast<Index>(columns_.size() * (moves.size() + 2)));
  trial_ = logits_;
  for (const Move& move : moves) {
    for (std::size_t e = 0; e < columns_.size(); ++e) {
      trial_[e] += move.by * static_cast<double>(row.keys.row(columns_[e])[move.coordinate]);
    }
  }
  const Standing standing = trial_standing(row);
  if (!(standing.loss < best_.loss)) return false;
  best_ = standing;
  logits_ = trial_;
  for (const Move& move : moves) query[move.coordinate] = static_cast<float>(moved(move));
  square_ = square;
  return true;
}

// Tries all moves once. Returns whether one was made.
bool GridSearch::sweep(const SearchedRow& row, const Grid& grid, float* query) {
  const auto neighbour = [&](Index f, int sign) -> Move {
    return {f, sign * grid.spacing(static_cast<double>(query[f]))};
  };
  bool moved = false;
  for (Index f = 0; f < row.keys.dim(); ++f) {
    for (const int sign : {-1, 1}) {
      const Move one = neighbour(f, sign);
      if (try_moves(row, grid, {&one, 1}, query)) moved = true;
      for (Index g = 0; g < f; ++g) {
        for (const int other : {-1, 1}) {
          const Move pair[] = {neighbour(f, sign), neighbour(g, other)};
          if (try_moves(row, grid, pair, query)) moved = true;
        }
      }
    }
  }
  return moved;
}

void GridSearch::improve(const SearchedRow& row, const Grid& grid, float* query) {
  if (row.required.support_size(row.index) == 0) return;
  begin(row, query);
  for (int sweeps = 0; !best_.meets && sweeps < Settings::most_rounding_sweeps; ++sweeps) {
    if (!sweep(row, grid, query)) break;
  }
}

}  // namespace headfit::learned
