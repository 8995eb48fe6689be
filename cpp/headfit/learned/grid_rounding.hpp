// Rounding a row to a coarse number format so that the errors of its coordinates cancel in
// the logits that matter, instead of adding up as those of the nearest numbers would.
#pragma once

#include "headfit/base/number_format.hpp"
#include "headfit/learned/lists.hpp"
#include "headfit/learned/row_sums.hpp"

namespace headfit::learned {

// The numbers that a coordinate may take: those of the format, times a unit.
struct Grid {
  NumberFormat format;
  double unit = 1;

  double rounded(double x) const { return unit * format.rounded(x / unit); }
  double spacing(double x) const { return unit * format.spacing(x / unit); }
};

class GridRounding {
 public:
  GridRounding(Index dim, Index largest_list)
      : dim_(dim),
        factor_(static_cast<std::size_t>(dim * dim)),
        error_(static_cast<std::size_t>(dim)),
        logits_(static_cast<std::size_t>(largest_list)),
        trial_(logits_.size()) {}

  // Coordinate by coordinate from the last, each to the grid point nearest to what makes up
  // for the errors before it: Babai's nearest plane for the metric of the row's curvature.
  void nearest_plane(const RowSums& sums, const Grid& grid, float* row);

  // Moves single coordinates and pairs of them to neighbouring grid points until the row meets
  // the tolerances, or no such move makes its loss fall. Whether it meets them then, as far as
  // its list tells.
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
  Standing standing(const Requirements& required, Index i, Index support, double share,
                    double rounding) const;
  void shift(const Lists& lists, Index i, const PaddedRows& keys, const Move& move);

  Index dim_;
  std::vector<double> factor_, error_;
  std::vector<double> logits_, trial_;  // of the listed columns
};

}  // namespace headfit::learned
