#include "headfit/index/judge.hpp"

#include <numeric>

namespace headfit {

using index::hidden;
namespace {

// The free keys of a row that are not masked.
class BestKeys {
 public:
  // The best `most` of them, by falling values; equal ones by rising columns.
  std::span<const Index> of(const FreeKeys& free, const float* scores, const float* values,
                            Index most) {
    columns_.clear();
    free.for_each([&](Index first, Index size) {
      for (Index c = first; c < first + size; ++c) {
        if (scores[c] != hidden) columns_.push_back(c);
      }
    });
    const auto before = [&](Index a, Index b) {
      return values[a] != values[b] ? values[a] > values[b] : a < b;
    };
    const auto end = columns_.begin() + std::min(most, count());
    if (end != columns_.end()) std::nth_element(columns_.begin(), end, columns_.end(), before);
    std::sort(columns_.begin(), end, before);
    return {columns_.begin(), end};
  }
  // How many there were of the last row.
  Index count() const { return static_cast<Index>(columns_.size()); }

 private:
  std::vector<Index> columns_;
};

// How many keys a row attends to besides those that are kept anyway, of `keys` in all.
Index free_count(const KeptAnyway& kept, Index keys) {
  const Index free = keys - kept.count();
  if (free < 0) throw InputError("keys must be at least first + window, which are kept anyway");
  return free;
}

void check_call(const LogitSource<float>& passage, const Matrix<float>& maps) {
  check_index_passage(passage);
  if (maps.rows() != map_rows(passage)) {
    throw InputError("maps must have rows for each query head and each key head");
  }
}

// Calls work(row, scores, free, attention) for every row, with the scores of an index, on all threads
// of the run. Each has a worker of its own. `attention` is that of `attended`, or null without it.
template <class MakeWorker>
void for_scored_rows(const LogitSource<float>& passage, const Matrix<float>& maps,
                     const IndexOptions& options, const LogitSource<float>* attended,
                     const Run& run, const MakeWorker& make_worker) {
  struct Work {
    IndexProducts products;
    Matrix<float> heads, attention;
    std::vector<Index> rows;
    bool is_open = false;
  };
  parallel_rows(passage.row_count(), run, [&] {
    return [&, work = Work(), worker = make_worker()](Index first, Index end) mutable {
      if (!work.is_open) work.products.open(passage, maps, options);
      work.is_open = true;
      work.rows.clear();
      for (Index i = first; i < end; ++i) work.rows.push_back(passage.row_at(i));
      work.products.read(work.rows);
      if (attended) read_mean_attention(*attended, work.rows, work.heads, work.attention);
      for (Index r = 0; r < end - first; ++r) {
        checkpoint();
        const FreeKeys free = work.products.free_keys(r, options.kept);
        work.products.to_scores(r, free);
        worker(first + r, work.products.products(0, r), free,
               attended ? work.attention.row(r).data() : nullptr);
      }
    };
  }, index::chunk_rows);
}

// Judges what is found by products with `maps` of `scored`, or by its logits.
IndexJudgement judge(const LogitSource<float>& passage, const LogitSource<float>& scored,
                     const Matrix<float>& maps, const IndexOptions& options, Index keys,
                     const Run& run) {
  const Index most = free_count(options.kept, keys);
  IndexJudgement judged;
  for (Vector<double>* x : {&judged.kept, &judged.free, &judged.found, &judged.exact,
                            &judged.recall, &judged.heaviest, &judged.seen}) {
    x->setZero(passage.row_count());
  }
  for_scored_rows(scored, maps, options, &passage, run, [&] {
    return [&, by_score = BestKeys(), by_mass = BestKeys(),
            is_found = std::vector<char>()](Index row, const float* scores, const FreeKeys& free,
                                            const float* p) mutable {
      double& kept = judged.kept[row];
      free.for_kept([&](Index c) { kept += static_cast<double>(p[c]); });
      const std::span<const Index> found = by_score.of(free, scores, scores, most);
      const std::span<const Index> exact = by_mass.of(free, scores, p, most);
      is_found.assign(static_cast<std::size_t>(passage.k.rows), 0);
      const auto mass = [&](std::span<const Index> columns) {
        double sum = kept;
        for (const Index c : columns) sum += static_cast<double>(p[c]);
        return sum;
      };
      judged.found[row] = mass(found);
      judged.exact[row] = mass(exact);
      judged.free[row] = static_cast<double>(by_score.count());
      for (const Index c : found) is_found[static_cast<std::size_t>(c)] = 1;
      const auto is_hit = [&](Index c) { return is_found[static_cast<std::size_t>(c)] != 0; };
      const auto hits = static_cast<double>(std::ranges::count_if(exact, is_hit));
      judged.recall[row] = exact.empty() ? 1 : hits / static_cast<double>(exact.size());
      judged.heaviest[row] = exact.empty() || is_hit(exact[0]);
      const Eigen::Map<const Eigen::ArrayXf> all(p, passage.k.rows);
      judged.seen[row] = passage.sinks ? all.cast<double>().sum() : 1;  // without rounding
    };
  });
  return judged;
}

}  // namespace

IndexJudgement judge_index(const LogitSource<float>& passage, const Matrix<float>& maps,
                           const IndexOptions& options, Index keys, const Run& run) {
  check_call(passage, maps);
  return judge(passage, passage, maps, options, keys, run);
}

IndexJudgement judge_logits(const LogitSource<float>& passage, const LogitSource<float>& scored,
                            const KeptAnyway& kept, Index keys, const Run& run) {
  check_index_passage(passage);
  check_index_passage(scored);
  if (scored.row_count() != passage.row_count() || scored.k.rows != passage.k.rows) {
    throw InputError("what is scored must have the rows and keys of the passage");
  }
  return judge(passage, scored, {}, {IndexForm::sum, IndexFormat(), kept}, keys, run);
}

Vector<double> gained_mass(const LogitSource<float>& passage, const Matrix<float>& maps,
                           const IndexOptions& options, Index keys,
                           std::span<const Column> selections, const Run& run) {
  check_call(passage, maps);
  const Index most = free_count(options.kept, keys);
  const Index rows = passage.row_count(), size = static_cast<Index>(selections.size());
  const Index count = rows * keys > 0 ? size / (rows * keys) : 0;
  const auto is_bad = [&](Column c) { return c < -1 || c >= passage.k.rows; };
  if (count * rows * keys != size || std::ranges::any_of(selections, is_bad)) {
    throw InputError("selections must have columns of the passage, so many for each of its rows");
  }
  Matrix<double> gains = Matrix<double>::Zero(rows, count + 1);
  for_scored_rows(passage, maps, options, &passage, run, [&] {
    return [&, best = BestKeys()](Index row, const float* scores, const FreeKeys& free,
                                  const float* p) mutable {
      const std::span<const Index> exact = best.of(free, scores, p, most);
      if (best.count() <= most) return;
      for (const Index c : exact) gains(row, count) += static_cast<double>(p[c]);
      for (Index s = 0; s < count; ++s) {
        const auto first = static_cast<std::size_t>((s * rows + row) * keys);
        for (const Column c : selections.subspan(first, static_cast<std::size_t>(keys))) {
          if (free.has(c)) gains(row, s) += static_cast<double>(p[c]);
        }
      }
    };
  });
  return gains.colwise().sum();
}

void select_keys(const LogitSource<float>& passage, const Matrix<float>& maps,
                 const IndexOptions& options, Index keys, Column* out, const Run& run) {
  check_call(passage, maps);
  const Index most = free_count(options.kept, keys);
  for_scored_rows(passage, maps, options, nullptr, run, [&] {
    return [&, best = BestKeys(), columns = std::vector<Index>()](Index row, const float* scores,
                                                                  const FreeKeys& free,
                                                                  const float*) mutable {
      columns.clear();
      free.for_kept([&](Index c) {
        if (scores[c] != hidden) columns.push_back(c);
      });
      const std::span<const Index> found = best.of(free, scores, scores, most);
      columns.insert(columns.end(), found.begin(), found.end());
      std::sort(columns.begin(), columns.end());
      Column* to = out + row * keys;
      std::fill(to, to + keys, Column(-1));
      std::copy(columns.begin(), columns.end(), to);
    };
  });
}

void score_keys(const LogitSource<float>& passage, const Matrix<float>& maps,
                const IndexOptions& options, float* out, const Run& run) {
  check_call(passage, maps);
  const Index cols = passage.k.rows;
  for_scored_rows(passage, maps, options, nullptr, run, [&] {
    return [&](Index row, const float* scores, const FreeKeys&, const float*) {
      std::copy(scores, scores + cols, out + row * cols);
    };
  });
}

IndexNumbers index_numbers(const LogitSource<float>& passage, const Matrix<float>& maps,
                           const IndexOptions& options, const Run& run) {
  check_call(passage, maps);
  IndexProducts keys;
  keys.open(passage, maps, options);
  const Index rows_of_head = passage.q.rows;
  IndexNumbers numbers{Matrix<float>(keys.heads() * rows_of_head, maps.cols()), {}};
  numbers.keys = keys.keys();
  parallel_rows(rows_of_head, run, [&] {
    return [&, products = keys, rows = std::vector<Index>()](Index first, Index end) mutable {
      const Index count = end - first;
      rows.resize(static_cast<std::size_t>(count));
      std::iota(rows.begin(), rows.end(), first);
      products.map_queries(rows);
      for (Index h = 0; h < products.heads(); ++h) {
        numbers.queries.middleRows(h * rows_of_head + first, count) =
            products.queries().middleRows(h * count, count);
      }
    };
  }, index::chunk_rows);
  return numbers;
}

}  // namespace headfit
