#include "headfit/cache/stored_tokens.hpp"

#include <algorithm>

#include "headfit/base/errors.hpp"
#include "headfit/base/linear_algebra.hpp"

namespace headfit {
namespace {

// So many tokens keep their latents and numbers in the second level of cache.
constexpr Index few = 128;

std::span<float> span_of(Matrix<float>& x, Index row) {
  return {x.row(row).data(), static_cast<std::size_t>(x.cols())};
}

// Calls work(numbers of a head, the same in the row of a token) for the heads of token t.
template <class Numbers, class Work>
void for_each_head(const TokenStore& store, const TokenBatch& batch, Numbers* numbers, Index t,
                   float* row, const Work& work) {
  const Index entry = t / batch.tokens, token = t % batch.tokens;
  for (Index h = 0; h < store.heads; ++h) {
    work(numbers + ((entry * store.heads + h) * batch.tokens + token) * store.size(),
         row + h * store.size());
  }
}

}  // namespace

void TokenStore::check() const {
  format.check(rank());
  if (heads < 1 || rank() < 1 || size() * heads != width() || size() < 1 ||
      maps.encode.rows() != width() || maps.encode.cols() != rank() || maps.mean.rows() != 1 ||
      maps.mean.cols() != width()) {
    throw InputError("maps, bits and heads of a cache must belong together");
  }
}

void store_tokens(const TokenStore& store, const TokenBatch& batch, const float* numbers,
                  std::uint8_t* bytes, const Run& run) {
  store.check();
  const Eigen::RowVectorXf offset = store.maps.mean * store.maps.encode;
  const Vector<float> weights = store.maps.decode.rowwise().squaredNorm();
  const Index size = store.size();
  parallel_rows(batch.entries * batch.tokens, run, [&] {
    return [&, rows = Matrix<float>(), latents = Matrix<float>(),
            steps = Matrix<float>()](Index first, Index end) mutable {
      rows.resize(end - first, store.width());
      for (Index t = first; t < end; ++t) {
        for_each_head(store, batch, numbers, t, rows.row(t - first).data(),
                      [&](const float* from, float* to) {
          std::copy_n(from, size, to);
          if (batch.positions.table) batch.positions.turn_back(t, to, size);
        });
      }
      multiply<float>(rows, store.maps.encode, latents);
      latents.rowwise() -= offset;
      if (store.format.rounds() && !store.format.has_steps() && !latents.allFinite()) {
        throw NonFiniteError("numbers to store in bits must be finite in float32; got NaN or Inf");
      }
      store.format.round(latents, weights, steps);
      for (Index t = first; t < end; ++t) {
        store.format.pack(span_of(latents, t - first), span_of(steps, t - first),
                          bytes + t * store.token_bytes());
      }
    };
  }, few);
}

void read_tokens(const TokenStore& store, const TokenBatch& batch, const std::uint8_t* bytes,
                 float* numbers, const Run& run) {
  store.check();
  const Index size = store.size();
  parallel_rows(batch.entries * batch.tokens, run, [&] {
    return [&, rows = Matrix<float>(), latents = Matrix<float>()](Index first, Index end) mutable {
      latents.resize(end - first, store.rank());
      for (Index t = first; t < end; ++t) {
        store.format.unpack(bytes + t * store.token_bytes(), span_of(latents, t - first));
      }
      multiply<float>(latents, store.maps.decode, rows);
      rows.rowwise() += store.maps.mean.row(0);
      for (Index t = first; t < end; ++t) {
        for_each_head(store, batch, numbers, t, rows.row(t - first).data(),
                      [&](float* to, const float* from) {
          std::copy_n(from, size, to);
          if (batch.positions.table) batch.positions.turn(t, to, size);
        });
      }
    };
  }, few);
}

}  // namespace headfit
