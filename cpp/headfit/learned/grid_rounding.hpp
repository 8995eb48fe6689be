// Rounds a row to a coarse number format in such a way that the errors of its coordinates cancel in
// the logits that matter. Rounding every coordinate to the nearest number would let them add up.
#pragma once

#include <limits>

#include "headfit/base/checkpoint.hpp"
#include "headfit/base/number_format.hpp"
#include "headfit/learned/fit_learned.hpp"
#include "headfit/learned/lists.hpp"
#include "headfit/learned/row_sums.hpp"

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

class GridRounding {
 public:
  GridRounding(Index dim, Index largest_list)
      : dim_(dim),
        factor_(static_cast<std::size_t>(dim * dim)),
        error_(static_cast<std::size_t>(dim)),
        logits_(static_cast<std::size_t>(largest_list)),
        trial_(logits_.size()) {}

  // Rounds the coordinates one after the other, from the last to the first. Each goes to the grid
  // point nearest to the value that compensates for the errors of those before it: Babai's nearest
  // plane algorithm in the metric of the row's curvature. The row is within the
  // radius of the grid then; one that was not is made shorter first.
  void nearest_plane(const RowSums& sums, const Grid& grid, float* row);

  // Moves single coordinates and pairs of coordinates to neighbouring grid points until the row
  // meets the tolerances or no such move lowers its loss; a move out of the radius of the grid is
  // not made. Returns whether it meets them then, as
  // far as its candidate list tells.
  bool improve(const Requirements& required, const Lists& lists, Index i, const Grid& grid,
               const PaddedRows& keys, float rounding, float* query);

 private:
  struct Move {
    Index coordinate;
    double by;
  };
  struct Standing {
    double loss;
    bool meets;
  };
  void shorten(const Grid& grid, float* row);
  Standing standing(const Requirements& required, Index i, Index support, double share,
                    double rounding) const;
  void shift(const Lists& lists, Index i, const PaddedRows& keys, const Move& move);

  Index dim_;
  std::vector<double> factor_, error_;
  std::vector<double> logits_, trial_;  // logits of the listed columns
  Checkpoints pace_;
};

}  // namespace headfit::learned
