#include "headfit/learned/grid_rounding.hpp"

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

void GridRounding::nearest_plane(const RowSums& sums, const Grid& grid, float* row) {
  constexpr double relative_damping = 1e-2;
  double trace = 0;
  for (Index a = 0; a < dim_; ++a) trace += static_cast<double>(sums.curvature_row(a)[a]);
  const double damping = relative_damping * trace / static_cast<double>(dim_) + 1e-12;
  const auto l = [&](Index a, Index b) -> double& {
    return factor_[static_cast<std::size_t>(a * dim_ + b)];
  };
  for (Index a = 0; a < dim_; ++a) {
    for (Index b = 0; b <= a; ++b) {
      double v = static_cast<double>(sums.curvature_row(a)[b]) + (a == b ? damping : 0);
      for (Index c = 0; c < b; ++c) v -= l(a, c) * l(b, c);
      l(a, b) = a == b ? std::sqrt(std::max(v, damping * 1e-3)) : v / l(b, b);
    }
    pace_.after(a * a / 2);
  }
  const double square = square_of(row, dim_), most = grid.radius * grid.radius;
  if (square > most) {
    const auto factor = static_cast<float>(std::sqrt(most / square) * below_one);
    for (Index a = 0; a < dim_; ++a) row[a] *= factor;
  }
  // Chooses errors for which the sum over a of (sum over b >= a of l(b, a) error(b))^2 is small.
  for (Index a = dim_ - 1; a >= 0; --a) {
    double carried = 0;
    for (Index b = a + 1; b < dim_; ++b) carried += l(b, a) * error_[static_cast<std::size_t>(b)];
    const double x = static_cast<double>(row[a]);
    const double y = grid.rounded(x - carried / l(a, a));
    error_[static_cast<std::size_t>(a)] = y - x;
    row[a] = static_cast<float>(y);
  }
  shorten(grid, row);
}

// Moves coordinates that were rounded away from zero towards it, one grid point at a time and those
// with the largest errors first, until the row is within the radius of the grid.
void GridRounding::shorten(const Grid& grid, float* row) {
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

// The loss of a row over its listed columns, and whether it would pass the check of a scan.
GridRounding::Standing GridRounding::standing(const Requirements& required, Index i, Index support,
                                              double share, double rounding) const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const float* log_weights = required.log_weights(i);
  double centre = 0, high = -infinity, low = infinity, lowest = infinity;
  for (Index a = 0; a < support; ++a) {
    const double s = trial_[static_cast<std::size_t>(a)];
    const double shifted = s - static_cast<double>(log_weights[a]);
    centre += shifted / static_cast<double>(support);
    high = std::max(high, shifted);
    low = std::min(low, shifted);
    lowest = std::min(lowest, s);
  }
  const double hinge = static_cast<double>(required.hinge(i, static_cast<float>(centre)));
  const auto beyond_bound = [&](double logit) {
    const auto largest = static_cast<double>(required.logit_hinge());
    const double beyond = std::max(0.0, std::abs(logit) - largest);
    return beyond * beyond;
  };
  double loss = 0, top = -infinity, size = 0;
  for (Index a = 0; a < support; ++a) {
    const double residual =
        trial_[static_cast<std::size_t>(a)] - static_cast<double>(log_weights[a]) - centre;
    loss += residual * residual + beyond_bound(trial_[static_cast<std::size_t>(a)]);
    size = std::max(size, std::abs(trial_[static_cast<std::size_t>(a)]));
  }
  for (std::size_t e = static_cast<std::size_t>(support); e < trial_.size(); ++e) {
    const double excess = std::max(0.0, trial_[e] - hinge);
    loss += share * (excess * excess + beyond_bound(trial_[e]));
    top = std::max(top, trial_[e]);
    size = std::max(size, std::abs(trial_[e]));
  }
  const bool meets =
      size + rounding <= static_cast<double>(required.max_logit()) &&
      high - low + 2 * rounding <= static_cast<double>(required.spread_limit()) &&
      top + 2 * rounding <= lowest - static_cast<double>(required.log_inverse_leak());
  return {loss, meets};
}

void GridRounding::shift(const Lists& lists, Index i, const PaddedRows& keys, const Move& move) {
  const Entry first = lists.first(i);
  for (std::size_t e = 0; e < trial_.size(); ++e) {
    const float* key = keys.row(lists.column(static_cast<Entry>(first + e)));
    trial_[e] += move.by * static_cast<double>(key[move.coordinate]);
  }
}

bool GridRounding::improve(const Requirements& required, const Lists& lists, Index i,
                           const Grid& grid, const PaddedRows& keys, float rounding, float* query) {
  constexpr int most_sweeps = 20;
  const Index support = required.support_size(i);
  if (support == 0) return true;
  const auto size = static_cast<std::size_t>(lists.size(i));
  logits_.resize(size);
  for (std::size_t e = 0; e < size; ++e) {
    logits_[e] = static_cast<double>(
        dot(query, keys.row(lists.column(static_cast<Entry>(lists.first(i) + e))), keys.width()));
  }
  trial_ = logits_;
  const double share = static_cast<double>(lists.share(i));
  Standing best = standing(required, i, support, share, static_cast<double>(rounding));
  double square = square_of(query, dim_);
  const auto moved_to = [&](const Move& move) {
    return grid.rounded(static_cast<double>(query[move.coordinate]) + move.by);
  };

  // Tries a move of one coordinate, or of two at once, and keeps it if the loss falls.
  const auto try_moves = [&](std::span<const Move> moves) {
    double next = square;
    for (const Move& move : moves) {
      const double x = static_cast<double>(query[move.coordinate]), y = moved_to(move);
      next += y * y - x * x;
    }
    if (next > grid.radius * grid.radius && next > square) return false;
    pace_.after(static_cast<Index>(size * (moves.size() + 2)));
    trial_ = logits_;
    for (const Move& move : moves) shift(lists, i, keys, move);
    const Standing now = standing(required, i, support, share, static_cast<double>(rounding));
    if (!(now.loss < best.loss)) return false;
    best = now;
    logits_ = trial_;
    for (const Move& move : moves) query[move.coordinate] = static_cast<float>(moved_to(move));
    square = next;
    return true;
  };
  const auto neighbour = [&](Index f, int sign) -> Move {
    return {f, sign * grid.spacing(static_cast<double>(query[f]))};
  };

  bool moved = true;
  for (int sweep = 0; moved && !best.meets && sweep < most_sweeps; ++sweep) {
    moved = false;
    for (Index f = 0; f < dim_; ++f) {
      for (const int sign : {-1, 1}) {
        const Move one = neighbour(f, sign);
        if (try_moves({&one, 1})) moved = true;
        for (Index g = 0; g < f; ++g) {
          for (const int other : {-1, 1}) {
            const Move pair[] = {neighbour(f, sign), neighbour(g, other)};
            if (try_moves(pair)) moved = true;
          }
        }
      }
    }
  }
  return best.meets;
}

}  // namespace headfit::learned
