// Which constraint of a pool enters next: the most violated one, or nearly so.
//
// A sweep over the whole pool costs more than the step that follows it. The few worst
// rows of a sweep are therefore looked at alone until none of them is violated any more:
// only then comes the next sweep. What ends the search is always a sweep: one in single
// precision, and what this leaves undecided is decided in double precision.
#pragma once

#include <array>
#include <vector>

#include "headfit/row_qp/constraint_pool.hpp"
#include "headfit/row_qp/working_set.hpp"

namespace headfit {

class MostViolated {
 public:
  void reserve(int rows);
  // A row outside the set that misses its right-hand side by more than `allowed`, or -1.
  int find(ConstraintPool& pool, const WorkingSet& set, double allowed);

 private:
  // Of 1 (always sweep) to 16 rows, 3 to 5 are the fastest for n=4096, k=8, d=96: from 1 to
  // 4 there are a third as many sweeps and 7% more steps, at 16 27% more steps.
  static constexpr std::size_t few = 4;

  static constexpr int lanes = 8;

  struct Row {
    double slack;
    int row;
    bool worse(const Row& other) const {
      return slack < other.slack || (slack == other.slack && row < other.row);
    }
  };
  double slack(const ConstraintPool& pool, int row, double product) const;
  int worst_listed(const ConstraintPool& pool, const WorkingSet& set, double allowed) const;
  void sweep(const ConstraintPool& pool, const WorkingSet& set, double allowed);
  void list_worst(double allowed, int begin, int end);

  std::vector<Row> list_;  // the worst of the last sweep
  std::array<double, ConstraintPool::groups> level_{};
  std::vector<double> slack_;  // a row each, and a few more for whole vectors
};

}  // namespace headfit
