#include "headfit/analysis/profile.hpp"

#include <unordered_map>

#include "headfit/analysis/exact_sums.hpp"
#include "headfit/attention/best_of_row.hpp"
#include "headfit/attention/row_statistics.hpp"
#include "headfit/logits/stream.hpp"

namespace headfit {
namespace {

template <class T>
class ProfileFold : public WholeRows<T> {
 public:
  ProfileFold(const LogitSource<T>& source, const ProfileOptions& options, const ProfileOut& out,
              const Offset* previous, ExactSums& columns, ExactSums& offsets)
      : statistics_(source, out.stats),
        n_(source.q.rows),
        m_(source.k.rows),
        options_(options),
        previous_(previous),
        out_(out),
        columns_(columns),
        offsets_(offsets) {}

  void entries(const RowBlock& block, Index r, const Entries<T>& entries) {
    const auto place = [&](Index c) { return entries.column(c); };
    // This goes through the entries. Whole rows go through the earlier places of the row's token
    // instead, which may be many more.
    const auto follows = [&](Index row, double sum) {
      const Offset* tokens = options_.tokens + block.head * options_.token_head_stride;
      double total = 0;
      for (Index c = 0; c < entries.count() && place(c) < row; ++c) {
        const bool follows_same = place(c) > 0 && tokens[place(c) - 1] == tokens[row];
        if (follows_same) total += static_cast<double>(entries.data[c]) / sum;
      }
      return total;
    };
    const double factor = finish_row(block, r, entries.data, entries.padded(), place, follows);
    const Index position = block.first + r + m_ - n_;
    for (Index c = 0; c < entries.count(); ++c) {
      const double weight = static_cast<double>(entries.data[c]) * factor;
      columns_.add(block.head * m_ + place(c), &weight, 1);
      offsets_.add(block.head * (n_ + m_ - 1) + position - place(c) + n_ - 1, &weight, 1);
    }
  }

  void end(const RowBlock& block) {
    if (block.by_entries) return;
    const Index width = this->padded(block);
    column_terms_.assign(static_cast<std::size_t>(width), 0.0);
    offset_terms_.assign(static_cast<std::size_t>(width + block.count), 0.0);
    for (Index r = 0; r < block.count; ++r) {
      T* x = this->row(r);
      const auto place = [&](Index c) { return block.col_begin + c; };
      const auto follows = [&](Index row, double sum) { return induction(block, row, x, sum); };
      spread(block, r, x, finish_row(block, r, x, this->padded(block), place, follows));
    }
    const Index cols = block.col_end - block.col_begin;
    columns_.add(block.head * m_ + block.col_begin, column_terms_.data(), cols);
    add_offsets(block, cols);
  }

 private:
  // Replaces a row of logits, of which x[c] stands in column column_of(c), by exponentials. Returns
  // what turns these into weights; 0 where the mask allows nothing. follows(row, sum) is the share
  // of the keys that follow an earlier occurrence of the row's token.
  template <class Place, class Follows>
  double finish_row(const RowBlock& block, Index r, T* x, Index padded, const Place& column_of,
                    const Follows& follows) {
    const Index row = block.first + r;
    const Index place = block.head * n_ + row;
    const T max = row_max(x, padded);
    const bool has_keys = max != -std::numeric_limits<T>::infinity();
    if (has_keys) {
      best_.start(options_.per_row, std::numeric_limits<double>::infinity(), -1);
      best_.offer(x, padded, column_of, [](const auto&) { return true; });
    }
    const RowSum sum = statistics_.take(block.head, place, x, padded, max);
    if (!has_keys) {
      out_.top_mass[place] = out_.log_gamma[place] = 0;
      out_.kept[place] = 0;
      if (out_.induction) out_.induction[place] = std::numeric_limits<double>::quiet_NaN();
      return 0;
    }
    best_.finish(list_, [&](double logit) { return logit - sum.log_keys; }, least_log_share);
    count_support(block.head, place);
    if (out_.induction) {
      out_.induction[place] = has_earlier(block, row) ? follows(row, sum.stored) * sum.key_mass
                                                      : std::numeric_limits<double>::quiet_NaN();
    }
    return 1 / sum.stored * sum.key_mass;
  }

  void count_support(Index head, Index place) {
    double top = 0;
    Index kept = 0;
    for (const Entry& e : list_.entries) {
      // Up to rounding; the largest entry belongs to the support however small the share is.
      if (kept == 0 || top < options_.share - 1e-12) {
        ++kept;
        const std::atomic_ref<Offset> load(out_.load[head * m_ + e.col]);
        load.fetch_add(1, std::memory_order_relaxed);
      }
      top += std::exp(e.key);
    }
    out_.top_mass[place] = std::min(top, 1.0);
    out_.kept[place] = kept;
    out_.log_gamma[place] =
        list_.entries[0].key - list_.entries[static_cast<std::size_t>(kept - 1)].key;
  }

  // The rows of a block share most offsets: row r is shifted by its distance to the last row.
  void spread(const RowBlock& block, Index r, const T* x, double factor) {
    const Index cols = block.col_end - block.col_begin;
    double* column = column_terms_.data();
    double* offset = offset_terms_.data() + (block.count - 1 - r);
    for (Index c = 0; c < cols; ++c) {
      const double weight = static_cast<double>(x[c]) * factor;
      column[c] += weight;
      offset[c] += weight;
    }
  }

  // offset_terms_[t] belongs to column col_begin + t as seen from the last row of the block.
  // Offsets fall as t grows, but they are stored in rising order.
  void add_offsets(const RowBlock& block, Index cols) {
    const Index count = cols + block.count - 1;
    if (cols <= 0) return;
    std::reverse(offset_terms_.begin(), offset_terms_.begin() + count);
    const Index last_row = block.first + block.count - 1;
    const Index least = last_row + m_ - n_ - (block.col_begin + count - 1);
    offsets_.add(block.head * (n_ + m_ - 1) + least + n_ - 1, offset_terms_.data(), count);
  }

  // Whether a key before the row follows an earlier occurrence of the row's token.
  bool has_earlier(const RowBlock& block, Index row) const {
    const Offset* previous = previous_ + block.head * n_;
    const Offset last = previous[row];
    return last >= 0 && (last + 1 < row || previous[last] >= 0);
  }

  double induction(const RowBlock& block, Index row, const T* x, double sum) const {
    const Offset* previous = previous_ + block.head * n_;
    double total = 0;
    for (Offset j = previous[row]; j >= 0; j = previous[j]) {
      const Index col = j + 1;
      if (col >= row) continue;  // the row's own token, or a later one
      if (col >= block.col_begin && col < block.col_end) {
        total += static_cast<double>(x[col - block.col_begin]) / sum;
      }
    }
    return total;
  }

  RowStatistics<T> statistics_;
  Index n_, m_;
  ProfileOptions options_;
  const Offset* previous_;  // see `previous_places`
  ProfileOut out_;
  ExactSums& columns_;
  ExactSums& offsets_;
  BestOfRow<T> best_;
  BestEntries list_;
  std::vector<double> column_terms_, offset_terms_;
};

void check(const ProfileOptions& options, Index n, Index m) {
  if (options.per_row < 1) {
    throw InputError("per_row must be at least 1; got ", options.per_row);
  }
  if (!(options.share > 0 && options.share <= 1)) {
    throw InputError("share must lie in (0, 1]; got ", options.share);
  }
  if (options.tokens && n != m) {
    throw InputError("tokens need as many queries as keys; got ", n, " and ", m);
  }
}

// For each head and position, the last earlier position of its token, or -1; nothing without tokens.
std::vector<Offset> previous_places(const ProfileOptions& options, Index n, Index heads) {
  std::vector<Offset> previous;
  if (!options.tokens) return previous;
  previous.reserve(static_cast<std::size_t>(heads * n));
  std::unordered_map<Offset, Offset> last;
  for (Index h = 0; h < heads; ++h) {
    last.clear();
    const Offset* tokens = options.tokens + h * options.token_head_stride;
    for (Index i = 0; i < n; ++i) {
      const auto place = last.try_emplace(tokens[i], -1).first;
      previous.push_back(place->second);
      place->second = i;
    }
  }
  return previous;
}

}  // namespace

template <class T>
void head_profile(const LogitSource<T>& source, const ProfileOptions& options,
                  const ProfileOut& out, const Run& run) {
  const Index n = source.q.rows;
  const Index m = source.k.rows;
  const Index heads = source.q.count;
  if (source.rows) throw InputError("a profile is about all rows");
  check(options, n, m);
  check_shares(out.stats.shares);
  const std::vector<Offset> previous = previous_places(options, n, heads);
  const auto largest = static_cast<double>(n);
  ExactSums columns(heads * m, largest);
  ExactSums offsets(heads * std::max<Index>(0, n + m - 1), largest);
  std::fill_n(out.load, heads * m, Offset(0));
  stream_tiles(source, run, [&] {
    return ProfileFold<T>(source, options, out, previous.data(), columns, offsets);
  });
  columns.write(out.column_mass);
  offsets.write(out.offset_mass);
}

template void head_profile(const LogitSource<float>&, const ProfileOptions&, const ProfileOut&,
                           const Run&);
template void head_profile(const LogitSource<double>&, const ProfileOptions&, const ProfileOut&,
                           const Run&);

}  // namespace headfit
