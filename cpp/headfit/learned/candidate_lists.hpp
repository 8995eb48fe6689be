// The candidate lists. For each row they hold the columns that enter its loss: its support, always,
// and columns off the support that the last scan found near or above the row's limit. The same
// slots can also be read by column.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "headfit/learned/scan.hpp"

namespace headfit::learned {

// Selects which columns are listed if more of them exceed a row's limit than its list holds. Takes
// evenly spaced elements of a sequence whose length is only estimated in advance, so that the list
// ends nearly full. If the list overflows, every second element is dropped and the stride doubles,
// which keeps the sample even whatever the length is.
class EvenSample {
 public:
  EvenSample() = default;
  // `draw` is a random number that decides where the sample starts.
  EvenSample(Index expected, int cap, std::uint32_t draw)
      : stride_(std::max(unit, expected * unit * 9 / (cap * 8))),
        next_(static_cast<Index>(draw) % stride_) {}

  // The next elements of the sequence: the columns of a vector whose bits are set.
  void take(std::uint32_t bits, Index column, int cap, Column* list) {
    const Index end = seen_ + std::popcount(bits);
    for (; next_ < end * unit; next_ += stride_) {
      if (taken_ == cap) {
        for (int t = 0; 2 * t < cap; ++t) list[t] = list[2 * t];
        taken_ = cap / 2;
        stride_ *= 2;
      }
      std::uint32_t from_next = bits;
      for (Index skip = next_ / unit - seen_; skip > 0; --skip) from_next &= from_next - 1;
      list[taken_++] = static_cast<Column>(column + std::countr_zero(from_next));
    }
    seen_ = end;
  }
  Index seen() const { return seen_; }
  Index taken() const { return taken_; }

 private:
  static constexpr Index unit = 256;  // the stride is a fraction, in units of 1 / 256
  Index stride_ = unit;
  Index next_ = 0;  // where in the sequence the next column is taken, in the same units
  Index seen_ = 0;
  int taken_ = 0;
};

class CandidateLists {
 public:
  // Where a listed column stands among those of all rows.
  using Slot = std::uint32_t;

  // The lists are those of `scanned`, which holds all rows and must outlive this.
  CandidateLists(const Requirements& required, const ScannedRows& scanned)
      : required_(required),
        scanned_(scanned),
        column_start_(static_cast<std::size_t>(required.n()) + 1) {
    const Index most = required.target().nonzeros() + required.n() * scanned.list_cap;
    if (most > static_cast<Index>(std::numeric_limits<Slot>::max())) {
      throw InputError("A is too large to be learned: ", most, " list entries");
    }
    sources_.resize(static_cast<std::size_t>(most));
  }

  Index n() const { return required_.n(); }
  std::size_t slots() const { return sources_.size(); }
  // Row i owns the slots first(i) ... first(i) + size(i) - 1, its support before the others.
  Slot first(Index i) const {
    return static_cast<Slot>(required_.target().offsets[i] + i * scanned_.list_cap);
  }
  Index size(Index i) const { return required_.support_size(i) + listed(i); }
  // How many columns off the support the row lists, and these columns.
  Index listed(Index i) const { return scanned_.listed[static_cast<std::size_t>(i)]; }
  std::span<const Column> others(Index i) const {
    return {scanned_.list(i), static_cast<std::size_t>(listed(i))};
  }
  // How many columns off the support each listed one stands for.
  float share(Index i) const {
    const Index hits = scanned_.hits[static_cast<std::size_t>(i)];
    return listed(i) > 0 ? static_cast<float>(hits) / static_cast<float>(listed(i)) : 1.0f;
  }

  // Sorts all slots by column, with ascending rows in each. Keys can then sum their gradients in
  // a fixed order, which does not depend on the order in which threads process rows.
  void transpose(const Run& run);
  struct Source {
    Column row;
    Slot slot;
  };
  std::span<const Source> sources(Index column) const {
    const auto at = static_cast<std::size_t>(column);
    return {sources_.data() + column_start_[at], sources_.data() + column_start_[at + 1]};
  }

 private:
  const Requirements& required_;
  const ScannedRows& scanned_;
  std::vector<Slot> column_start_;  // n + 1
  std::vector<Source> sources_;
  std::vector<Slot> places_;  // for each chunk of rows, where the next slot of each column goes
};

// A counting sort that works in chunks of rows. Its result does not depend on how rows are chunked.
inline void CandidateLists::transpose(const Run& run) {
  constexpr Index least_rows = 256;
  const Index chunks = run.thread_count(n() / least_rows);
  const auto columns = static_cast<std::size_t>(n());
  places_.resize(static_cast<std::size_t>(chunks) * columns);
  const auto for_chunk = [&](Index chunk, auto&& body) {
    Slot* places = places_.data() + static_cast<std::size_t>(chunk) * columns;
    const Index end = n() * (chunk + 1) / chunks;
    for (Index i = n() * chunk / chunks; i < end; ++i) {
      Slot slot = first(i);
      for (const Column j : required_.support(i)) body(places[j], i, slot++);
      for (const Column j : others(i)) body(places[j], i, slot++);
    }
  };
  parallel_for(chunks, run, [&](Index chunk) {
    std::fill_n(places_.data() + static_cast<std::size_t>(chunk) * columns, columns, Slot(0));
    for_chunk(chunk, [](Slot& count, Index, Slot) { ++count; });
  });
  Slot place = 0;
  for (std::size_t j = 0; j < columns; ++j) {
    column_start_[j] = place;
    for (std::size_t chunk = 0; chunk < static_cast<std::size_t>(chunks); ++chunk) {
      Slot& count = places_[chunk * columns + j];
      place += std::exchange(count, place);
    }
  }
  column_start_[columns] = place;
  parallel_for(chunks, run, [&](Index chunk) {
    for_chunk(chunk, [&](Slot& next, Index i, Slot slot) {
      sources_[next++] = {static_cast<Column>(i), slot};
    });
  });
}

}  // namespace headfit::learned
