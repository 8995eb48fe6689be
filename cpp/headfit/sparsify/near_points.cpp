// Reads the nearest points of rows from a tree of boxes. Squared distances are summed by coordinate
// without contraction, so that they are the same for both points of a pair and on every machine.
#include <numeric>

#include "headfit/sparsify/matching.hpp"

namespace headfit {
namespace {

constexpr Index leaf_size = 16;

// A k-d tree. It prunes nothing that may be wanted: rounding is monotone, and distances to boxes
// are summed as those to points are.
class PointTree {
 public:
  PointTree(std::span<const double> points, Index dims)
      : points_(points.data()),
        dims_(dims),
        order_(points.size() / static_cast<std::size_t>(dims)) {
    std::iota(order_.begin(), order_.end(), Column(0));
    add_node(0, size());
    for (Node& node : nodes_) {
      if (node.right != 0) continue;
      node.leaf = leaves_.size();
      for (Index c = 0; c < dims_; ++c) {
        // A leaf with fewer points repeats the last one, which is not offered then.
        for (Index p = 0; p < leaf_size; ++p) {
          leaves_.push_back(at(std::min(node.begin + p, node.end - 1))[c]);
        }
      }
    }
  }

  Index size() const { return static_cast<Index>(order_.size()); }

  // Offers all points but `row` itself, scored by their negative squared distance from it; those
  // that cannot be among the best few are left out.
  template <class Admit>
  void offer(Index row, BestOfRow<double>& best, const Admit& admit) const {
    visit(0, to_box(nodes_[0], points_ + row * dims_), row, best, admit);
  }

 private:
  struct Node {
    Index begin, end;  // its points, as places in order_
    Index right;  // its second child, after the first one; 0 for a leaf
    Column least_col;
    std::size_t box;  // where its box begins: the least coordinates, and the largest ones
    std::size_t leaf = 0;  // where the coordinates of the points of a leaf begin
  };
  using Box = Eigen::Map<Eigen::ArrayXd>;

  const double* at(Index place) const {
    return points_ + order_[static_cast<std::size_t>(place)] * dims_;
  }
  Index add_node(Index begin, Index end) {
    const auto first = order_.begin() + begin, last = order_.begin() + end;
    const auto node = static_cast<Index>(nodes_.size());
    nodes_.push_back({begin, end, 0, *std::min_element(first, last), boxes_.size()});
    boxes_.insert(boxes_.end(), at(begin), at(begin) + dims_);
    boxes_.insert(boxes_.end(), at(begin), at(begin) + dims_);
    Box low(boxes_.data() + boxes_.size() - 2 * dims_, dims_);
    Box high(low.data() + dims_, dims_);
    for (Index p = begin + 1; p < end; ++p) {
      const Eigen::Map<const Eigen::ArrayXd> point(at(p), dims_);
      low = low.min(point);
      high = high.max(point);
    }
    if (end - begin > leaf_size) {
      Index widest = 0;
      (high - low).maxCoeff(&widest);
      const Index middle = begin + (end - begin) / 2;
      std::nth_element(first, order_.begin() + middle, last, [&](Column a, Column b) {
        return points_[a * dims_ + widest] < points_[b * dims_ + widest];
      });
      add_node(begin, middle);
      const Index right = add_node(middle, end);
      nodes_[static_cast<std::size_t>(node)].right = right;
    }
    return node;
  }

  // The best entry that a box may hold: its distance, and the least column of its points.
  Scored<double> to_box(const Node& node, const double* from) const {
    const double* low = boxes_.data() + node.box;
    double square = 0;
    for (Index c = 0; c < dims_; ++c) {
      const double beside = std::max({low[c] - from[c], from[c] - low[dims_ + c], 0.0});
      square += beside * beside;
    }
    return {-square, node.least_col};
  }

  template <class Admit>
  void visit(Index at, const Scored<double>& nearest, Index row, BestOfRow<double>& best,
             const Admit& admit) const {
    if (!best.wants(nearest)) return;
    const Node& node = nodes_[static_cast<std::size_t>(at)];
    const double* from = points_ + row * dims_;
    if (node.right == 0) return offer_leaf(node, row, best, admit);
    Index near = at + 1, far = node.right;
    Scored<double> to_near = to_box(nodes_[static_cast<std::size_t>(near)], from);
    Scored<double> to_far = to_box(nodes_[static_cast<std::size_t>(far)], from);
    if (to_far.before(to_near)) std::swap(near, far), std::swap(to_near, to_far);
    visit(near, to_near, row, best, admit);
    visit(far, to_far, row, best, admit);
  }

  template <class Admit>
  void offer_leaf(const Node& leaf, Index row, BestOfRow<double>& best, const Admit& admit) const {
    using Lanes = Eigen::Array<double, leaf_size, 1>;
    Lanes squares = Lanes::Zero();
    const double* x = leaves_.data() + leaf.leaf;
    for (Index c = 0; c < dims_; ++c, x += leaf_size) {
      squares += (Eigen::Map<const Lanes>(x) - points_[row * dims_ + c]).square();
    }
    for (Index p = leaf.begin; p < leaf.end; ++p) {
      const Column col = order_[static_cast<std::size_t>(p)];
      if (col != row) best.offer_one({-squares[p - leaf.begin], col}, admit);
    }
  }

  const double* points_;
  Index dims_;
  std::vector<Column> order_;
  std::vector<Node> nodes_;
  std::vector<double> boxes_;
  std::vector<double> leaves_;  // by leaf, and by coordinate within each
};

// The key of a pair is its negative squared distance.
class NearPoints : public RowReader {
 public:
  explicit NearPoints(const PointTree& tree) : tree_(tree) {}
  Index rows() const override { return tree_.size(); }
  Index cols() const override { return tree_.size(); }
  double share(double key) const override { return -key; }

  void read(std::span<const Index> rows, Index limit, const Columns& columns,
            std::vector<RowList>& lists, const Run& run) const override {
    parallel_rows(static_cast<Index>(rows.size()), run, [&] {
      return [&, best = BestOfRow<double>()](Index first, Index end) mutable {
        for (const Index row : rows.subspan(first, end - first)) {
          RowList& list = lists[static_cast<std::size_t>(row)];
          best.start(limit, list.last_score, list.last_col);
          tree_.offer(row, best, [&](const auto& s) {
            return columns.would_take(s.col, {s.score, static_cast<Column>(row)});
          });
          best.finish(list, [](double score) { return score; },
                      -std::numeric_limits<double>::infinity());
        }
      };
    });
  }

 private:
  const PointTree& tree_;
};

}  // namespace

SparseRows nearest_points(std::span<const double> points, Index dims, Index per_row,
                          Index per_column, const Run& run) {
  if (dims < 1 || points.empty())
    throw InputError("points must be at least one, of one coordinate");
  const PointTree tree(points, dims);
  return match(NearPoints(tree),
               {.per_row = per_row, .per_column = per_column, .on_empty = OnEmpty::leave}, run);
}

}  // namespace headfit
