#include "headfit/learned/start.hpp"

#include <numbers>

#include "headfit/base/checkpoint.hpp"

namespace headfit::learned {
namespace {

// Random streams of the seed. Scans draw from the streams below these, which are numbered by rows.
constexpr std::uint64_t key_stream = std::uint64_t(1) << 40;
constexpr std::uint64_t query_stream = std::uint64_t(2) << 40;

// The normal number at a place of the stream. The method of Box and Muller makes two normal numbers
// from two random words.
float normal(const Philox& random, std::uint64_t major, std::uint64_t attempt, Index place) {
  const auto words = random(major, attempt << 32 | static_cast<std::uint64_t>(place / 4));
  const auto unit = [&](std::size_t w) { return (static_cast<double>(words[w]) + 0.5) * 0x1p-32; };
  const auto pair = static_cast<std::size_t>(place % 4 / 2 * 2);
  const double radius = std::sqrt(-2 * std::log(unit(pair)));
  const double angle = 2 * std::numbers::pi * unit(pair + 1);
  return static_cast<float>(radius * (place % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

void fill_rows(const MatrixView<float>& given, const Philox& random, std::uint64_t stream,
               PaddedRows& rows) {
  constexpr float small = 0.1f;
  Checkpoints pace;
  for (Index i = 0; i < rows.rows(); ++i) {
    float* row = rows.row(i);
    const std::uint64_t place = stream + static_cast<std::uint64_t>(i);
    for (Index f = 0; f < rows.dim(); ++f) {
      row[f] = f < given.cols() ? given(i, f) : small * normal(random, place, 0, f);
    }
    pace.after(32 * rows.dim());
  }
}

}  // namespace

void random_start(const Requirements& required, const Philox& random, std::uint64_t attempt,
                  PaddedRows& q, PaddedRows& k) {
  Checkpoints pace;
  for (Index j = 0; j < k.rows(); ++j) {
    for (Index f = 0; f < k.dim(); ++f) {
      k.row(j)[f] = normal(random, key_stream + static_cast<std::uint64_t>(j), attempt, f);
    }
    pace.after(32 * k.dim());
  }
  q.clear();
  for (Index i = 0; i < q.rows(); ++i) {
    const auto columns = required.support(i);
    const auto weights = required.target().row_weights(i);
    for (std::size_t a = 0; a < columns.size(); ++a) {
      add_scaled(static_cast<float>(2 * weights[a]), k.row(columns[a]), q.row(i), q.width());
      pace.after(q.width());
    }
  }
}

void given_start(const MatrixView<float>& given_q, const MatrixView<float>& given_k,
                 const Philox& random, PaddedRows& q, PaddedRows& k) {
  fill_rows(given_q, random, query_stream, q);
  fill_rows(given_k, random, key_stream, k);
}

}  // namespace headfit::learned
