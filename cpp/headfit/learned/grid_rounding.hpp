// Rounds a row to a coarse number format in such a way that the errors of its coordinates cancel in
// the logits that matter. Rounding every coordinate to the nearest number would let them add up.
#pragma once

#include <limits>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/number_format.hpp"
#include "headfit/learned/fit_learned.hpp"
#include "headfit/learned/row_steps.hpp"

namespace headfit::learned {

// The radius of a ball in which queries and keys keep max ||q|| max ||k|| within a bound; 0 is none.
// The balance between queries and keys is free: both get the same radius.
double common_radius(double max_norm);

// The numbers that a coordinate may take: the numbers of a format, times a unit; and the largest
// norm of a row of them.
struct Grid {
  NumberFormat format;
  double unit = 1;
  double radius = std::numeric_limits<double>::infinity();

  double rounded(double x) const { return unit * format.rounded(x / unit); }
  // The distance of the number nearest to x from the next larger one. A coordinate is stored as a
  // float, which may be a little less than the power of two, times the unit, that it stands for.
  double spacing(double x) const { return unit * format.spacing(format.rounded(x / unit)); }
};

Grid key_grid(const Storage& storage);
// Queries have what the rounded keys leave of the bound on the norms.
Grid query_grid(const Storage& storage, const PaddedRows& rounded_keys);

// Rounds the coordinates one after the other, from the last to the first. Each goes to the grid point
// nearest to the value that compensates for the errors of those before it: Babai's nearest plane
// algorithm in the metric of the row's curvature.
class NearestPlane {
 public:
  explicit NearestPlane(Index dim)
      : dim_(dim),
        factor_(static_cast<std::size_t>(dim * dim)),
        error_(static_cast<std::size_t>(dim)) {}

  // The row is within the radius of the grid then; one that was not is made shorter first.
  void round(const RowSums& sums, const Grid& grid, float* row);

 private:
  void factorise(const RowSums& sums);
  double& factor(Index a, Index b) { return factor_[static_cast<std::size_t>(a * dim_ + b)]; }
  void shorten(const Grid& grid, float* row);

  Index dim_;
  std::vector<double> factor_, error_;
  Checkpoints checkpoints_;
};

// A row whose query is searched, and what its loss depends on.
struct SearchedRow {
  const Requirements& required;
  const CandidateLists& lists;
  const PaddedRows& keys;
  Index index;
  float rounding;  // see ScannedRows
};

// A local search for a query among the points of a grid.
class GridSearch {
 public:
  explicit GridSearch(Index largest_list)
      : columns_(static_cast<std::size_t>(largest_list)),
        logits_(columns_.size()),
        trial_(columns_.size()) {}

  // Moves single coordinates and pairs of coordinates to neighbouring grid points until the row
  // meets the tolerances or no such move lowers its loss; a move out of the radius of the grid is
  // not made.
  void improve(const SearchedRow& row, const Grid& grid, float* query);

 private:
  struct Move {
    Index coordinate;
    double by;
  };
  struct Standing {
    double loss;
    bool meets;
  };
  void begin(const SearchedRow& row, const float* query);
  bool sweep(const SearchedRow& row, const Grid& grid, float* query);
  bool try_moves(const SearchedRow& row, const Grid& grid, std::span<const Move> moves,
                 float* query);
  Standing trial_standing(const SearchedRow& row) const;

  std::vector<Column> columns_;  // the support and the other listed columns of the row
  std::vector<double> logits_, trial_;  // their logits, and those after moves that are tried
  Standing best_{};
  double square_ = 0;  // the squared norm of the query
  Checkpoints checkpoints_;
};

}  // namespace headfit::learned
