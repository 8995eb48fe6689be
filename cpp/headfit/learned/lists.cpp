#include "headfit/learned/lists.hpp"

#include <string>
#include <utility>

namespace headfit::learned {

Lists::Lists(const Requirements& required, int cap)
    : required_(required),
      cap_(cap),
      size_(static_cast<std::size_t>(required.n())),
      hits_(size_.size()),
      share_(size_.size(), 1.0f),
      column_start_(size_.size() + 1) {
  const Index total = required.target().nonzeros() + required.n() * cap;
  if (total > static_cast<Index>(std::numeric_limits<Entry>::max())) {
    throw InputError("A is too large to be learned: " + std::to_string(total) + " list entries");
  }
  column_.resize(static_cast<std::size_t>(total));
  sources_.resize(static_cast<std::size_t>(total));
  for (Index i = 0; i < required.n(); ++i) {
    std::copy(required.support(i).begin(), required.support(i).end(), column_.begin() + first(i));
  }
  forget();
}

void Lists::forget() {
  // How many hits a row has is not known yet; half of the columns is a guess.
  for (Index i = 0; i < n(); ++i) set_others(i, 0, n() / 2);
}

std::vector<Column> Lists::all_others() const {
  std::vector<Column> all(static_cast<std::size_t>(n() * cap_));
  for (Index i = 0; i < n(); ++i) {
    const Column* others = column_.data() + first(i) + required_.support_size(i);
    std::copy_n(others, listed(i), all.begin() + i * cap_);
  }
  return all;
}

// A counting sort that works in chunks of rows. Its result does not depend on how rows are chunked.
void Lists::transpose(const Run& run) {
  constexpr Index least_rows = 256;
  const Index chunks = run.thread_count(n() / least_rows);
  const auto columns = static_cast<std::size_t>(n());
  places_.resize(static_cast<std::size_t>(chunks) * columns);
  const auto for_chunk = [&](Index chunk, auto&& body) {
    Entry* places = places_.data() + static_cast<std::size_t>(chunk) * columns;
    const Index end = n() * (chunk + 1) / chunks;
    for (Index i = n() * chunk / chunks; i < end; ++i) {
      const Entry begin = first(i);
      const auto last = static_cast<Entry>(begin + size(i));
      for (Entry e = begin; e < last; ++e) body(places[column_[e]], i, e);
    }
  };
  parallel_for(chunks, run, [&](Index chunk) {
    std::fill_n(places_.data() + static_cast<std::size_t>(chunk) * columns, columns, Entry(0));
    for_chunk(chunk, [](Entry& count, Index, Entry) { ++count; });
  });
  Entry place = 0;
  for (std::size_t j = 0; j < columns; ++j) {
    column_start_[j] = place;
    for (std::size_t chunk = 0; chunk < static_cast<std::size_t>(chunks); ++chunk) {
      Entry& count = places_[chunk * columns + j];
      place += std::exchange(count, place);
    }
  }
  column_start_[columns] = place;
  parallel_for(chunks, run, [&](Index chunk) {
    for_chunk(chunk, [&](Entry& next, Index i, Entry e) {
      sources_[next++] = {static_cast<Column>(i), e};
    });
  });
}

}  // namespace headfit::learned
