#include "headfit/logits/microkernel.hpp"

namespace headfit {
namespace {

// The products of a row group and a panel, in registers.
template <class T>
struct PanelSums {
  using B = Blocking<T>;
  static constexpr int rows = static_cast<int>(B::row_group);
  simd::Packet<T> at[rows][2];

  EIGEN_ALWAYS_INLINE PanelSums() {
    for (auto& row : at) row[0] = row[1] = simd::fill<T>(T(0));
  }
  EIGEN_ALWAYS_INLINE void store(T* c, Index stride) const {
    for (int r = 0; r < rows; ++r) {
      simd::store(c + r * stride, at[r][0]);
      simd::store(c + r * stride + B::lanes, at[r][1]);
    }
  }
};

// sum += a * b, for a panel b.
template <class T, class Left>
EIGEN_ALWAYS_INLINE void add_products(Index depth, const Left& a, const T* b, PanelSums<T>& sum) {
  using B = Blocking<T>;
  const T* left = a.data;
  for (Index p = 0; p < depth; ++p) {
    const auto b0 = simd::load(b);
    const auto b1 = simd::load(b + B::lanes);
    for (int r = 0; r < sum.rows; ++r) {
      const auto x = simd::fill<T>(left[r * a.row]);
      sum.at[r][0] = simd::pmadd(x, b0, sum.at[r][0]);
      sum.at[r][1] = simd::pmadd(x, b1, sum.at[r][1]);
    }
    b += B::panel;
    left += a.column;
  }
}

// Adds the exponentials of one row of a panel to the row's lanes.
template <class T>
EIGEN_ALWAYS_INLINE void add_row(const ExpSums<T>& to, Index r, const simd::Packet<T>& left,
                                 const simd::Packet<T>& right) {
  const simd::ShiftedExp<T> shifted_exp(to.shifts[r]);
  const auto terms = simd::padd(shifted_exp(left), shifted_exp(right));
  T* lanes = to.lanes + r * Blocking<T>::lanes;
  simd::store(lanes, simd::padd(simd::load(lanes), terms));
}

}  // namespace

template <Product how, class T, class Left>
void multiply_panel(Index groups, Index depth, Left a, const T* b, T* c, Index c_stride) {
  using B = Blocking<T>;
  for (Index g = 0; g < groups; ++g, a = a.next(depth), c += B::row_group * c_stride) {
    PanelSums<T> sum;
    for (int r = 0; how == Product::added && r < sum.rows; ++r) {
      sum.at[r][0] = simd::load(c + r * c_stride);
      sum.at[r][1] = simd::load(c + r * c_stride + B::lanes);
    }
    add_products(depth, a, b, sum);
    sum.store(c, c_stride);
  }
}

template <class T>
void multiply_entries(Index width, const T* q, const RowsInMemory<T>& keys,
                      std::span<const Column> columns, Index count, T* c) {
  constexpr Index lanes = Blocking<T>::lanes;
  const auto known = static_cast<Index>(columns.size());
  for (Index i = 0; i < count; i += lanes) {
    const T* key[lanes];
    for (Index l = 0; l < lanes; ++l) {
      key[l] = keys.row(columns[static_cast<std::size_t>(std::min(i + l, count - 1))]);
    }
    // Keys are all over the memory: those of the next vector are fetched meanwhile.
    for (Index l = i + lanes; l < std::min(i + 2 * lanes, known); ++l) {
      const T* next = keys.row(columns[static_cast<std::size_t>(l)]);
      simd::prefetch_run(next, width);
    }
    auto sum = simd::fill<T>(T(0));
    for (Index p = 0; p < width; p += lanes) {
      simd::PacketBlock<simd::Packet<T>, static_cast<int>(lanes)> square;
      for (Index l = 0; l < lanes; ++l) square.packet[l] = simd::load(key[l] + p);
      simd::transpose(square);
      for (Index l = 0; l < lanes; ++l) {
        sum = simd::pmadd(simd::fill<T>(q[p + l]), square.packet[l], sum);
      }
    }
    simd::store(c + i, sum);
  }
}

template <int vectors, int chains, class T>
void add_weighted_rows(const T* weights, const RowsInMemory<T>& rows,
                       std::span<const Column> columns, T* sums) {
  constexpr Index lanes = Blocking<T>::lanes;
  simd::Packet<T> sum[chains][vectors];
  for (auto& chain : sum) std::fill_n(chain, vectors, simd::fill<T>(T(0)));
  const auto add = [&](std::size_t i, auto& chain) {
    const T* row = rows.row(columns[i]);
    const auto weight = simd::fill<T>(weights[i]);
    for (int v = 0; v < vectors; ++v) {
      chain[v] = simd::pmadd(weight, simd::load(row + v * lanes), chain[v]);
    }
  };
  std::size_t i = 0;
  for (; i + chains <= columns.size(); i += chains) {
    for (int c = 0; c < chains; ++c) add(i + static_cast<std::size_t>(c), sum[c]);
  }
  for (int c = 0; i < columns.size(); ++i, ++c) add(i, sum[c]);
  for (int v = 0; v < vectors; ++v) {
    auto total = sum[0][v];
    for (int c = 1; c < chains; ++c) total = simd::padd(total, sum[c][v]);
    simd::store(sums + v * lanes, simd::padd(simd::load(sums + v * lanes), total));
  }
}

template <class T, bool with_lowest>
bool panel_exceeds(Index depth, const QueryGroup<T>& a, const T* b, const T* limits, T* lowest,
                   T* c) {
  using B = Blocking<T>;
  PanelSums<T> sum;
  add_products(depth, a, b, sum);
  simd::AnyAbove<T> above;
  for (int r = 0; r < sum.rows; ++r) {  // one comparison for both vectors
    above.look(simd::pmax(sum.at[r][0], sum.at[r][1]), simd::fill<T>(limits[r]));
    if constexpr (with_lowest) {
      T* place = lowest + r * B::lanes;
      simd::store(place, simd::pmin(simd::pmin(sum.at[r][0], sum.at[r][1]), simd::load(place)));
    }
  }
  if (!above.found()) return false;
  sum.store(c, B::panel);
  return true;
}

template <class T>
bool add_exponentials_below(Index depth, const QueryGroup<T>& a, const T* b, const T* limits,
                            const ExpSums<T>& to, T* c) {
  PanelSums<T> sum;
  add_products(depth, a, b, sum);
  simd::AnyAbove<T> above;
  for (int r = 0; r < sum.rows; ++r) {
    above.look(simd::pmax(sum.at[r][0], sum.at[r][1]), simd::fill<T>(limits[r]));
  }
  if (above.found()) {
    sum.store(c, Blocking<T>::panel);
    return true;
  }
  for (int r = 0; r < sum.rows; ++r) add_row(to, r, sum.at[r][0], sum.at[r][1]);
  return false;
}

template <class T>
void add_exponentials(const T* c, const ExpSums<T>& to) {
  using B = Blocking<T>;
  for (Index r = 0; r < B::row_group; ++r, c += B::panel) {
    add_row(to, r, simd::load(c), simd::load(c + B::lanes));
  }
}

template void multiply_panel<Product::stored>(Index, Index, QueryGroup<float>, const float*, float*,
                                              Index);
template void multiply_panel<Product::stored>(Index, Index, RowGroup<float>, const float*, float*,
                                              Index);
template void multiply_panel<Product::added>(Index, Index, RowGroup<float>, const float*, float*,
                                             Index);
template void multiply_entries(Index, const float*, const RowsInMemory<float>&,
                               std::span<const Column>, Index, float*);
template void add_weighted_rows<1, 1>(const float*, const RowsInMemory<float>&,
                                      std::span<const Column>, float*);
template void add_weighted_rows<2, 2>(const float*, const RowsInMemory<float>&,
                                      std::span<const Column>, float*);
template void add_weighted_rows<4, 1>(const float*, const RowsInMemory<float>&,
                                      std::span<const Column>, float*);
template bool panel_exceeds<float, false>(Index, const QueryGroup<float>&, const float*,
                                          const float*, float*, float*);
template bool panel_exceeds<float, true>(Index, const QueryGroup<float>&, const float*,
                                         const float*, float*, float*);
template bool add_exponentials_below(Index, const QueryGroup<float>&, const float*, const float*,
                                     const ExpSums<float>&, float*);
template void add_exponentials(const float*, const ExpSums<float>&);
template void multiply_panel<Product::stored>(Index, Index, QueryGroup<double>, const double*,
                                              double*, Index);
template void multiply_panel<Product::stored>(Index, Index, RowGroup<double>, const double*,
                                              double*, Index);
template void multiply_panel<Product::added>(Index, Index, RowGroup<double>, const double*, double*,
                                             Index);
template void multiply_entries(Index, const double*, const RowsInMemory<double>&,
                               std::span<const Column>, Index, double*);
template void add_weighted_rows<1, 1>(const double*, const RowsInMemory<double>&,
                                      std::span<const Column>, double*);
template void add_weighted_rows<2, 2>(const double*, const RowsInMemory<double>&,
                                      std::span<const Column>, double*);
template void add_weighted_rows<4, 1>(const double*, const RowsInMemory<double>&,
                                      std::span<const Column>, double*);
template bool panel_exceeds<double, false>(Index, const QueryGroup<double>&, const double*,
                                           const double*, double*, double*);
template bool panel_exceeds<double, true>(Index, const QueryGroup<double>&, const double*,
                                          const double*, double*, double*);
template bool add_exponentials_below(Index, const QueryGroup<double>&, const double*, const double*,
                                     const ExpSums<double>&, double*);
template void add_exponentials(const double*, const ExpSums<double>&);

}  // namespace headfit
