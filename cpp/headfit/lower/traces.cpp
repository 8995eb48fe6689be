#include "headfit/lower/traces.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "headfit/base/checkpoint.hpp"

namespace headfit {
TraceSearch::TraceSearch(const Target& target, bool of_columns, Offset pairs)
    : target_(target), of_columns_(of_columns) {
  const Index n = target.n;
  const std::span<const Offset> offsets(target.offsets, place(n + 1));
  const SparseTable rows{offsets, {target.columns, place(target.nonzeros())}, n};
  Transposed columns(rows);
  offsets_.assign(offsets.begin(), offsets.end());
  members_.assign(rows.columns.begin(), rows.columns.end());
  point_offsets_ = std::move(columns.offsets);
  holders_ = std::move(columns.rows);
  if (of_columns) {
    std::swap(offsets_, point_offsets_);
    std::swap(members_, holders_);
  }
  std::vector<Column> order(place(n));
  std::iota(order.begin(), order.end(), Column(0));
  const auto weight = [&](Column p) {
    return point_offsets_[place(p) + 1] - point_offsets_[place(p)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](Column a, Column b) { return weight(a) < weight(b); });
  std::vector<bool> is_light(place(n), true);
  Offset work = 0;
  for (const Column p : order) {
    work += weight(p) * weight(p);
    if (work > pairs) is_light[place(p)] = is_complete_ = false;
  }
  Checkpoints checkpoints;
  shared_offsets_.push_back(0);
  std::vector<Column> met;  // one entry for every point in common
  for (Column s = 0; s < n; ++s) {
    met.clear();
    for (const Column p : members(s)) {
      if (!is_light[place(p)]) continue;
      const auto begin = holders_.begin() + point_offsets_[place(p)];
      met.insert(met.end(), begin, begin + weight(p));
    }
    std::sort(met.begin(), met.end());
    for (auto at = met.begin(); at != met.end();) {
      const auto next = std::upper_bound(at, met.end(), *at);
      shared_.push_back(*at);
      shared_points_.push_back(static_cast<Column>(next - at));
      at = next;
    }
    shared_offsets_.push_back(static_cast<Offset>(shared_.size()));
    checkpoints.after(100 * static_cast<Index>(met.size()));
  }
}

ColumnRange TraceSearch::range(Column set) const {
  const Mask& mask = target_.mask;
  const Index n = target_.n;
  if (!of_columns_) return mask.range(0, set, n, n);
  return {mask.right ? std::max<Index>(0, set - *mask.right) : 0,
          mask.left ? std::min<Index>(n, set + *mask.left + 1) : n};
}

bool TraceSearch::sees(Column set, Column point) const {
  const Index n = target_.n;
  return of_columns_ ? target_.mask.allows(0, point, set, n, n)
                     : target_.mask.allows(0, set, point, n, n);
}

TraceSearch::Cells TraceSearch::cells(const std::vector<Column>& sets) const {
  Cells cells{std::vector<std::int32_t>(place(target_.n)),
              {std::vector<Column>(place(target_.n))},
              0};
  std::iota(cells.points[0].begin(), cells.points[0].end(), Column(0));
  for (const Column s : sets) divide(cells, s);
  return cells;
}

void TraceSearch::divide(Cells& cells, Column set) const {
  const ColumnRange open = range(set);
  const bool has_pattern = target_.mask.has_pattern();
  for (const Column p : members(set)) {
    if (cells.traces[place(p)] >= 0) cells.traces[place(p)] |= 1 << cells.sets;
  }
  ++cells.sets;
  cells.points.assign(place(Index(1) << cells.sets), {});
  for (Column p = 0; p < target_.n; ++p) {
    std::int32_t& trace = cells.traces[place(p)];
    if (p < open.begin || p >= open.end || (has_pattern && !sees(set, p))) trace = -1;
    if (trace >= 0) cells.points[place(trace)].push_back(p);
  }
}

std::vector<bool> TraceSearch::occurring(const Cells& cells, Column set) const {
  const std::size_t all = cells.points.size();
  std::vector<Index> inside(all);
  for (const Column p : members(set)) {
    if (cells.traces[place(p)] >= 0) ++inside[place(cells.traces[place(p)])];
  }
  const std::span<const Column> own = members(set);
  const ColumnRange open = range(set);
  std::vector<bool> found(2 * all);
  for (std::size_t t = 0; t < all; ++t) {
    const std::vector<Column>& points = cells.points[t];
    const auto begin = std::lower_bound(points.begin(), points.end(), open.begin);
    const auto end = std::lower_bound(begin, points.end(), open.end);
    found[t + all] = inside[t] > 0;
    found[t] = target_.mask.has_pattern() ? std::any_of(begin, end,
                                                        [&](Column p) {
      return !std::binary_search(own.begin(), own.end(), p) && sees(set, p);
    })
                                          : end - begin > inside[t];
  }
  return found;
}

Index TraceSearch::count_classes(const std::vector<bool>& occurring, bool free) const {
  const std::size_t all = occurring.size();
  Index count = 0;
  for (std::size_t t = 0; t < (free ? all : all / 2); ++t) {
    const bool constant = t == 0 && of_columns_;  // the trace of a row without support
    count += constant || occurring[t] || (!free && occurring[all - 1 - t]);
  }
  return count;
}

std::vector<Index> TraceSearch::classes_with(const std::vector<Column>& sets,
                                             const std::vector<Column>& more, bool free) const {
  const Cells now = cells(sets);
  std::vector<Index> counts;
  Checkpoints checkpoints;
  for (const Column s : more) {
    counts.push_back(count_classes(occurring(now, s), free));
    checkpoints.after(50 * static_cast<Index>(members(s).size()) + 20 * (Index(1) << now.sets));
  }
  return counts;
}

std::vector<Column> TraceSearch::points(const std::vector<Column>& sets, bool free) const {
  const Cells now = cells(sets);
  const std::size_t all = now.points.size();
  std::vector<bool> is_met(all);
  is_met[0] = of_columns_;
  std::vector<Column> points;
  for (Column p = 0; p < target_.n; ++p) {
    if (now.traces[place(p)] < 0) continue;
    const std::size_t trace = place(now.traces[place(p)]);
    const std::size_t name = free ? trace : std::min(trace, all - 1 - trace);
    if (!is_met[name]) points.push_back(p);
    is_met[name] = true;
  }
  return points;
}

std::vector<Column> TraceSearch::partners(Column set, Index least, Index size) const {
  std::vector<Column> partners;
  for (Offset at = shared_offsets_[place(set)]; at < shared_offsets_[place(set) + 1]; ++at) {
    const Column other = shared_[place(at)];
    if (shared_points_[place(at)] >= least && static_cast<Index>(members(other).size()) >= size) {
      partners.push_back(other);
    }
  }
  return partners;
}

std::vector<Column> TraceSearch::near(Column set) const { return partners(set, 1, 1); }

// Each set of a family on which every trace occurs has at least 2^(size-1) points and each two
// share 2^(size-2), or one less where a constant trace may be missing. Every subfamily has the
// same property, so that a branch ends when the first trace is missing.
std::vector<Column> TraceSearch::shattered(Index size) const {
  const Index most = (Index(1) << (size - 1)) - of_columns_;
  const Index least = size > 1 ? (Index(1) << (size - 2)) - of_columns_ : 0;
  Checkpoints checkpoints;
  for (Column s = 0; s < target_.n; ++s) {
    checkpoints.after(10 * target_.n);
    if (static_cast<Index>(members(s).size()) < most) continue;
    std::vector<Column> pool = partners(s, std::max<Index>(least, 1), most);
    pool.erase(pool.begin(), std::upper_bound(pool.begin(), pool.end(), s));
    if (static_cast<Index>(pool.size()) < size - 1) continue;
    std::vector<Column> chosen{s};
    if (grow(chosen, cells(chosen), pool, size, checkpoints)) return chosen;
  }
  return {};
}

bool TraceSearch::grow(std::vector<Column>& chosen, const Cells& cells,
                       const std::vector<Column>& pool, Index size,
                       Checkpoints& checkpoints) const {
  const Index most = (Index(1) << (size - 1)) - of_columns_;
  const Index least = (Index(1) << (size - 2)) - of_columns_;
  for (auto at = pool.begin(); at != pool.end(); ++at) {
    checkpoints.after(1000 + 50 * static_cast<Index>(members(*at).size()));
    std::vector<bool> found = occurring(cells, *at);
    const bool is_last = cells.sets + 1 == size;
    if (is_last && of_columns_) found.front() = found.back() = true;
    if (std::find(found.begin(), found.end(), false) != found.end()) continue;
    chosen.push_back(*at);
    if (is_last) return true;
    std::vector<Column> rest(at + 1, pool.end());
    if (cells.sets + 2 < size) {
      const std::vector<Column> both = partners(*at, std::max<Index>(least, 1), most);
      std::erase_if(rest,
                    [&](Column s) { return !std::binary_search(both.begin(), both.end(), s); });
    }
    Cells finer = cells;
    divide(finer, *at);
    checkpoints.after(10 * target_.n);
    if (grow(chosen, finer, rest, size, checkpoints)) return true;
    chosen.pop_back();
  }
  return false;
}

}  // namespace headfit
