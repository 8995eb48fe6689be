#include "headfit/cache/key_loss.hpp"

#include "headfit/base/linear_algebra.hpp"

namespace headfit {

LatentMaps LatentMaps::zero(Index width, Index rank) {
  return {Matrix<float>::Zero(width, rank), Matrix<float>::Zero(rank, width),
          Matrix<float>::Zero(1, width)};
}

namespace {

void check_layer(const LogitSource<float>& source, const LogitSource<float>& first) {
  source.validate();
  if (source.q.count != first.q.count || source.k.count != first.k.count ||
      source.k.cols != first.k.cols) {
    throw InputError("all passages must have as many heads, of one size");
  }
  for (const Heads<float>* x : {&source.q, &source.k}) {
    if (!std::holds_alternative<const float*>(x->data) || x->rotary.table) {
      throw InputError("passages must store float32, with positions applied");
    }
  }
}

// The keys of all heads side by side, turned back from their positions.
Matrix<float> flat_keys(const Heads<float>& keys, const Rotary<float>& positions) {
  Matrix<float> flat(keys.rows, keys.count * keys.cols);
  for (Index g = 0; g < keys.count; ++g) {
    flat.middleCols(g * keys.cols, keys.cols) = keys[g];
    if (!positions.table) continue;
    for (Index j = 0; j < keys.rows; ++j) {
      positions.turn_back(j, flat.row(j).data() + g * keys.cols, keys.cols);
    }
  }
  return flat;
}

}  // namespace

KeyLoss::KeyLoss(std::span<const LogitSource<float>> passages, const Rotary<float>& positions,
                 const Run& run)
    : positions_(positions) {
  if (passages.empty()) throw InputError("there must be a passage");
  for (const LogitSource<float>& source : passages) {
    check_layer(source, passages[0]);
    Passage& passage = passages_.emplace_back();
    passage.queries = source;
    passage.keys = flat_keys(source.k, positions);
    for (Index h = 0; h < source.q.count; ++h) {
      SoftTarget<float> target;
      target.attention = query_head_of(source, h);
      auto rows = std::make_unique<soft::TargetRows<float>>(target, run);
      // Which rows are read, and so whether they have few entries, is not known yet.
      rows->pack({true, source.mask.sparse_offsets != nullptr}, run);
      passage.targets.push_back(std::move(rows));
    }
  }
}

double KeyLoss::evaluate(const LatentMaps& maps, const LatentFormat& format,
                         const PassageRows& part, LatentMaps* gradient, Work& work) const {
  const Passage& passage = at(part.passage);
  format.check(maps.encode.cols());
  const auto mean = maps.mean.row(0);
  const Eigen::RowVectorXf shift = mean * maps.encode;
  multiply<float>(passage.keys, maps.encode, work.latents);
  checkpoint();
  work.latents.rowwise() -= shift;
  work.stored = work.latents;
  format.round(work.stored, maps.decode.rowwise().squaredNorm(), work.steps);
  multiply<float>(work.stored, maps.decode, work.read);
  work.read.rowwise() += mean;
  double count = 0;  // of the rows that attend to anything
  for (const auto& target : passage.targets) {
    for (const Index row : part.rows) count += target->attends(row) ? 1 : 0;
  }
  count = std::max(count, 1.0);
  const double divergence = diverge(passage, part.rows, gradient != nullptr, work);
  if (!gradient) return divergence / count;
  work.by_read *= static_cast<float>(passage.queries.scale / count);
  add_moments<float>(work.stored, work.by_read, gradient->decode);
  multiply<float>(work.by_read, maps.decode.transpose(), work.by_latents);
  format.to_gradient_before(work.latents, work.stored, work.steps, work.by_latents);
  const Eigen::RowVectorXf by_shift = work.by_latents.colwise().sum();
  add_moments<float>(passage.keys, work.by_latents, gradient->encode);
  gradient->encode.noalias() -= mean.transpose() * by_shift;
  gradient->mean.row(0) += work.by_read.colwise().sum();
  gradient->mean.row(0).noalias() -= by_shift * maps.encode.transpose();
  return divergence / count;
}

double KeyLoss::diverge(const Passage& passage, std::span<const Index> rows, bool with_gradient,
                        Work& work) const {
  const LogitSource<float>& all = passage.queries;
  const Index dim = all.k.cols, cols = all.k.rows;
  const Run alone{1, {}};
  work.unit.dim = dim;
  work.unit.with_gradient = with_gradient;
  work.unit.by_queries = false;
  if (with_gradient) work.by_read.setZero(cols, work.read.cols());
  double divergence = 0;
  for (Index g = 0; g < all.k.count; ++g) {
    const Heads<float> keys{work.read.data() + g * dim, 1,         cols, dim, dim,
                            work.read.cols(),           positions_};
    LogitSource<float> source = query_head_of(all, g * all.group);
    source.q.count = source.group = all.group;  // keys are packed for all that read them
    source.k = keys;
    source.rows = rows;
    const KeyLayouts layouts = whole_row_layouts(source, alone);
    const PackedKeys<float> packed(source, 0, 1, alone, layouts);
    if (with_gradient) work.unit.query_sums.reset(cols, dim, layouts);
    for (Index h = g * all.group; h < (g + 1) * all.group; ++h) {
      LogitSource<float> head = query_head_of(all, h);
      head.k = keys;
      head.rows = rows;
      work.unit.query_rows = {std::get<const float*>(head.q.data), head.q.row_stride};
      const auto& target = *passage.targets[static_cast<std::size_t>(h)];
      compress::diverge_from(target, head, packed, work.unit, divergence);
    }
    if (!with_gradient) continue;
    work.unit.query_sums.add_to(0, cols, work.by_read.middleCols(g * dim, dim));
    if (!positions_.table) continue;
    for (Index j = 0; j < cols; ++j) {
      positions_.turn_back(j, work.by_read.row(j).data() + g * dim, dim);
    }
  }
  return divergence;
}

}  // namespace headfit
