// Chooses which constraint of a pool enters the working set next: the most violated one, or nearly
// so.
//
// A sweep over the whole pool takes longer than the step that follows it. Therefore the few most
// violated constraints of a sweep are kept in a list, and only when none of these is violated any
// more comes the next sweep. The search always ends with a sweep that finds nothing: it is done in
// single precision, and in double precision where that leaves doubt.
#pragma once

#include <array>
#include <vector>

#include "headfit/row_qp/constraint_pool.hpp"
#include "headfit/row_qp/working_set.hpp"

namespace headfit {

class MostViolated {
 public:
  void reserve(int rows);
  // Returns a constraint outside the working set that is violated by more than `allowed`, or -1.
  int find(ConstraintPool& pool, const WorkingSet& set, double allowed);

 private:
  // The length of the list. For n=4096, k=8, d=96, lists of 3 to 5 are the fastest. Compared to 1,
  // a list of 4 needs a third of the sweeps and 7% more steps; one of 16 needs 27% more steps.
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

  std::vector<Row> list_;  // the most violated constraints of the last sweep
  std::array<double, ConstraintPool::groups> level_{};
  std::vector<double> slack_;  // one per constraint, padded to whole vectors
};

}  // namespace headfit
