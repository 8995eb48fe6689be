#include "headfit/learned/scan_request.hpp"

#include <algorithm>
#include <string>

#include "headfit/base/errors.hpp"
#include "headfit/learned/near_scan.hpp"

namespace headfit {
namespace {

using learned::PaddedRows;

// The candidate lists of some rows.
class ListsOfRows final : public learned::CandidateLists {
 public:
  ListsOfRows(const ScanRequest& request, Index first, ScannedRows& out)
      : request_(request), first_(first), out_(out) {
    if (request.listed.empty()) return;
    const std::size_t places = out.columns.size(), begin = static_cast<std::size_t>(first * cap());
    std::ranges::copy(request.columns.subspan(begin, places), out.columns.begin());
  }

  int cap() const override { return request_.list_cap; }
  Index hits(Index i) const override { return request_.hits[static_cast<std::size_t>(i)]; }
  Index listed(Index i) const override {
    return request_.listed.empty() ? 0 : request_.listed[static_cast<std::size_t>(i)];
  }
  Column* others(Index i) override { return out_.columns.data() + (i - first_) * cap(); }
  void set_others(Index i, Index listed, Index hits) override {
    const auto at = static_cast<std::size_t>(i - first_);
    out_.listed[at] = listed;
    out_.hits[at] = hits;
  }

 private:
  const ScanRequest& request_;
  Index first_;
  ScannedRows& out_;
};

// Checks the lists of these rows alone: the others are for other scans.
void check_kept(const Target& target, const ScanRequest& request, const RowRange& rows) {
  for (Index i = rows.first; i < rows.end; ++i) {
    const Index listed = request.listed[static_cast<std::size_t>(i)];
    if (listed < 0 || listed > request.list_cap) {
      throw InputError("listed must be in 0 ... " + std::to_string(request.list_cap) + "; got " +
                       std::to_string(listed) + " in row " + std::to_string(i));
    }
    const auto first = static_cast<std::size_t>(request.list_cap * i);
    for (const Column j : request.columns.subspan(first, static_cast<std::size_t>(listed))) {
      if (j < 0 || j >= target.n) {
        throw InputError("a scan must keep columns of A; got " + std::to_string(j) + " in row " +
                         std::to_string(i));
      }
    }
  }
}

void check(const Target& target, const Tolerances& tolerances, const ScanRequest& request,
           const RowRange& rows) {
  for (const Heads<float>* x : {&request.q, &request.k}) {
    if (x->count != 1 || x->rows != target.n || x->cols != request.q.cols || x->cols < 1) {
      throw InputError("Q and K of a scan must have one row for each of the " +
                       std::to_string(target.n) + " rows of A, and as many columns as each other");
    }
  }
  if (static_cast<Index>(request.hits.size()) != target.n) {
    throw InputError("hits must be one for each row; got " + std::to_string(request.hits.size()));
  }
  for (const Index hits : request.hits) {
    if (hits < 0) throw InputError("hits must not be negative; got " + std::to_string(hits));
  }
  const bool keeps = !request.listed.empty() || !request.columns.empty();
  if (keeps && (request.listed.size() != request.hits.size() ||
                static_cast<Index>(request.columns.size()) != target.n * request.list_cap)) {
    throw InputError("lists that a scan keeps must have list_cap places for each of the " +
                     std::to_string(target.n) + " rows");
  }
  if (rows.first < 0 || rows.end < rows.first || rows.end > target.n) {
    throw InputError("rows must lie in 0 ... " + std::to_string(target.n) + "; got " +
                     std::to_string(rows.first) + " ... " + std::to_string(rows.end));
  }
  if (request.list_cap < 2 || request.list_cap % 2 != 0) {
    throw InputError("list_cap must be even and positive; got " + std::to_string(request.list_cap));
  }
  if (request.column_step < 1 || request.column_step > target.n) {
    throw InputError("column_step must be in 1 ... " + std::to_string(target.n) + "; got " +
                     std::to_string(request.column_step));
  }
  if (request.column_step > 1 && (!target.mask.is_open() || tolerances.limits_logits())) {
    throw InputError("column_step must be 1 where there is a mask or a max_logit; got " +
                     std::to_string(request.column_step));
  }
  if (keeps) check_kept(target, request, rows);
}

PaddedRows padded(const Heads<float>& x) {
  PaddedRows rows(x.rows, x.cols);
  for (Index i = 0; i < x.rows; ++i) {
    std::copy_n(x[0].row(i).data(), x.cols, rows.row(i));
  }
  return rows;
}

}  // namespace

ScannedRows scan_rows(const Target& target, const Tolerances& tolerances,
                      const ScanRequest& request, const RowRange& rows, const Run& run) {
  tolerances.check();
  check_entries(target, run);
  check(target, tolerances, request, rows);
  learned::Requirements required(target, tolerances);
  required.reserve(request.reserve);
  const PaddedRows q = padded(request.q), k = padded(request.k);
  const Philox random(request.seed);
  ScannedRows out(rows.end - rows.first, request.list_cap);
  ListsOfRows lists(request, rows.first, out);
  learned::RowChecks checks(target.n);
  learned::scan_near({required, q, k, random, request.number, lists, checks, request.column_step,
                      !request.listed.empty(), rows},
                     target.mask, run);
  std::copy_n(checks.deficit.begin() + rows.first, out.deficit.size(), out.deficit.begin());
  std::copy_n(checks.rounding.begin() + rows.first, out.rounding.size(), out.rounding.begin());
  return out;
}

}  // namespace headfit
