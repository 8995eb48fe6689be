// Keeps the best few scores of a row that come after a given score, while the row is streamed.
#pragma once

#include "headfit/attention/softmax_row.hpp"
#include "headfit/base/best_few.hpp"

namespace headfit {

// An entry of a row. Its key makes entries of different rows comparable; within a row, entries are
// ordered by score and column.
struct Entry {
  double key;
  Column col;
};

// The best entries of a row, best first, as many as were asked for or as there are.
struct BestEntries {
  std::vector<Entry> entries;
  // Where a later scan of the row continues: after this score, or after this column if the score is
  // the same.
  double last_score = std::numeric_limits<double>::infinity();
  Column last_col = -1;
  bool complete = false;  // the row has no further entries
};

// Where the key of an entry is the logarithm of its share of the row, its logit minus the logarithm
// of the row's sum of exponentials, entries below this key, shares of 1e-304, are left out.
constexpr double least_log_share = -700;

template <class T>
class BestOfRow {
 public:
  void start(Index limit, double last_score, Column last_col) {
    limit_ = static_cast<std::size_t>(limit);
    after_ = {static_cast<T>(last_score), last_col};
    best_.clear(limit);
  }

  // Takes entries of the row in the order of their columns, padded to whole vectors with -inf; x[c]
  // stands in column place(c). Entries that `admit` refuses are left out.
  template <class Place, class Admit>
  void offer(const T* x, Index padded, const Place& place, const Admit& admit) {
    constexpr Index lanes = simd::lanes<T>;
    for (Index begin = 0; begin < padded; begin += lanes) {
      const T bar = best_.full() ? best_.bar().score : nothing;
      if (!(simd::predux_max(simd::load(x + begin)) > bar)) continue;
      for (Index c = begin; c < begin + lanes; ++c) {
        if (x[c] > nothing) offer_one({x[c], static_cast<Column>(place(c))}, admit);
      }
    }
  }

  // Whether an entry with this score and column would be among the best few.
  bool wants(const Scored<T>& s) const { return best_.wants(s); }

  template <class Admit>
  void offer_one(const Scored<T>& s, const Admit& admit) {
    if (s.score > nothing && best_.wants(s) && after_.before(s) && admit(s)) best_.push(s);
  }

  // Writes the list of the row; key_of(score) gives the key of an entry. The list ends at the first
  // entry whose key is below `least`.
  template <class KeyOf>
  void finish(BestEntries& list, const KeyOf& key_of, double least) {
    const auto& best = best_.sorted();
    list.complete = best.size() < limit_;
    list.entries.clear();
    for (const Scored<T>& s : best) {
      const double key = key_of(static_cast<double>(s.score));
      if (key < least) {
        list.complete = true;
        break;
      }
      list.entries.push_back({key, s.col});
      list.last_score = static_cast<double>(s.score);
      list.last_col = s.col;
    }
  }

 private:
  static constexpr T nothing = -std::numeric_limits<T>::infinity();
  std::size_t limit_ = 0;
  Scored<T> after_{};  // only entries that come after it are kept
  BestFew<Scored<T>> best_;
};

}  // namespace headfit
