// The candidate lists. For each row they hold the columns that enter its loss: its support, always,
// and columns off the support that the last scan found near or above the row's limit. The same
// entries can also be read by column.
#pragma once

#include "headfit/base/threads.hpp"
#include "headfit/learned/requirements.hpp"

namespace headfit::learned {

// The index of an entry in the arrays that hold all lists.
using Entry = std::uint32_t;

// What a scan asks of candidate lists: the hits that it expects in a row, and where to write.
class CandidateLists {
 public:
  virtual ~CandidateLists() = default;
  virtual int cap() const = 0;
  virtual Index hits(Index i) const = 0;
  // How many columns off the support the row lists already.
  virtual Index listed(Index i) const = 0;
  virtual Column* others(Index i) = 0;
  virtual void set_others(Index i, Index listed, Index hits) = 0;
};

class Lists final : public CandidateLists {
 public:
  Lists(const Requirements& required, int cap);

  Index n() const { return static_cast<Index>(size_.size()); }
  int cap() const override { return cap_; }
  // Row i owns the entries first(i) ... first(i) + size(i) - 1, its support before the others.
  Entry first(Index i) const {
    return static_cast<Entry>(required_.target().offsets[i] + i * cap_);
  }
  Index size(Index i) const { return size_[static_cast<std::size_t>(i)]; }
  Column column(Entry e) const { return column_[e]; }
  // How many columns off the support each listed one stands for.
  float share(Index i) const { return share_[static_cast<std::size_t>(i)]; }
  // How many columns off the support exceeded the limit at the last scan, listed or not. It is an
  // estimate if the scan looked at a part of the columns only.
  Index hits(Index i) const override { return hits_[static_cast<std::size_t>(i)]; }

  Index listed(Index i) const override { return size(i) - required_.support_size(i); }
  Column* others(Index i) override { return column_.data() + first(i) + required_.support_size(i); }
  void set_others(Index i, Index listed, Index hits) override {
    const auto at = static_cast<std::size_t>(i);
    size_[at] = required_.support_size(i) + listed;
    hits_[at] = hits;
    share_[at] = listed > 0 ? static_cast<float>(hits) / static_cast<float>(listed) : 1.0f;
  }
  void forget();
  // The columns off the support that rows list: cap() places for each row.
  std::vector<Column> all_others() const;

  // Sorts all entries by column, with ascending rows in each. Keys can then sum their gradients in
  // a fixed order, which does not depend on the order in which threads process rows.
  void transpose(const Run& run);
  struct Source {
    Column row;
    Entry entry;
  };
  std::span<const Source> sources(Index column) const {
    const auto at = static_cast<std::size_t>(column);
    return {sources_.data() + column_start_[at], sources_.data() + column_start_[at + 1]};
  }

 private:
  const Requirements& required_;
  int cap_;
  std::vector<Column> column_;
  std::vector<Index> size_, hits_;
  std::vector<float> share_;
  std::vector<Entry> column_start_;  // n + 1
  std::vector<Source> sources_;
  std::vector<Entry> places_;  // for each chunk of rows, where the next entry of each column goes
};

}  // namespace headfit::learned
