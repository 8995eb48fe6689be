#include "headfit/learned/fit_learned.hpp"

#include <string>

#include "headfit/learned/annealing.hpp"
#include "headfit/learned/start.hpp"

namespace headfit {
namespace {

void check_asked(double leak, double distortion, double max_logit) {
  if (!(leak > 0 && leak < 1)) {
    throw InputError("leak must lie between 0 and 1; got " + std::to_string(leak));
  }
  if (!(distortion > 0)) {
    throw InputError("distortion must be positive; got " + std::to_string(distortion));
  }
  if (!(max_logit > 0)) {
    throw InputError("max_logit must be positive; got " + std::to_string(max_logit));
  }
}

void check_start(const Target& target, const Heads<float>& q, const Heads<float>& k, Index dim) {
  for (const auto* start : {&q, &k}) {
    if (start->rows != target.n || start->cols < 1 || start->cols > dim || start->cols != q.cols) {
      throw InputError("a start must have " + std::to_string(target.n) + " rows and 1 to " +
                       std::to_string(dim) + " columns, as many in queries as in keys");
    }
    if (!(*start)[0].allFinite()) throw NonFiniteError("a start must be finite");
  }
}

void check(const Target& target, const GivenHead& head) {
  check_asked(head.leak, head.distortion, head.max_logit);
  check_start(target, head.q, head.k, head.q.cols);
}

void check(const Target& target, const LearnedOptions& options) {
  if (options.dim < 1) throw InputError("dim must be positive; got " + std::to_string(options.dim));
  check_asked(options.leak, options.distortion, options.max_logit);
  if (!(options.max_norm >= 0)) {
    throw InputError("max_norm must not be negative; got " + std::to_string(options.max_norm));
  }
  if (options.init_q.has_value() != options.init_k.has_value()) {
    throw InputError("a start needs both queries and keys");
  }
  if (options.init_q) check_start(target, *options.init_q, *options.init_k, options.dim);
}

}  // namespace

LearnedResult fit_learned(const Target& target, const Mask& mask, const LearnedOptions& options,
                          const Run& run) {
  check(target, options);
  if (target.n == 0) {
    LearnedResult nothing;
    nothing.status = LearnedStatus::Met;
    nothing.q.resize(0, options.dim);
    nothing.k.resize(0, options.dim);
    return nothing;
  }
  // A step is a fraction of a millisecond at small n: its helpers must not be made anew.
  const int threads = run.thread_count(target.n);
  WorkerPool helpers(threads - 1);
  Run pooled{threads, run.poll};
  pooled.helpers = &helpers;
  return learned::Annealing(target, mask, options, pooled).run();
}

Matrix<float> round_queries(const Target& target, const Mask& mask, const GivenHead& head,
                            const NumberFormat& format, double query_unit, const Run& run) {
  using namespace learned;
  check(target, head);
  if (target.n == 0) return {};
  constexpr int most_rounds = 6;
  const Requirements required(target, head.leak, head.distortion, head.max_logit);
  const std::uint64_t seed = 0;  // of the columns that scans draw
  const Recipe recipe = Recipe::for_rows(target.n, required.mean_support(), head.distortion);
  constexpr float unbounded = std::numeric_limits<float>::infinity();
  Descent descent(required, mask, head.q.cols, recipe, seed, unbounded, run);
  descent.start_from(head.q[0], head.k[0]);
  descent.scan();
  const Grid grid{format, query_unit};
  descent.round_queries(grid, true);
  for (int round = 1; descent.scan().rows_left > 0 && round < most_rounds; ++round) {
    descent.round_queries(grid, false);
  }
  return descent.q().matrix();
}

LossGradient feasibility_loss(const Target& target, const Mask& mask, const GivenHead& head,
                              const Run& run) {
  using namespace learned;
  check(target, head);
  const Requirements required(target, head.leak, head.distortion, head.max_logit);
  PaddedRows q(target.n, head.q.cols);
  PaddedRows k(q);
  const Philox random(0);  // nothing is drawn: every column has a place in the lists
  given_start(head.q[0], head.k[0], random, q, k);
  Lists lists(required, static_cast<int>(target.n + target.n % 2));
  RowChecks checks(target.n);
  scan_near({required, q, k, random, 0, lists, checks}, mask, run);
  lists.transpose(run);
  Gradient gradient(required, lists);
  RowScratch scratch(q.dim(), required.largest_support());
  LossGradient result{0, Matrix<float>(target.n, q.dim()), Matrix<float>(target.n, q.dim())};
  for (Index i = 0; i < target.n; ++i) {
    const auto state =
        gradient.query(i, q, k, 1.0f, checks.rounding[static_cast<std::size_t>(i)], scratch);
    result.loss += static_cast<double>(state.loss);
    for (Index f = 0; f < q.dim(); ++f) result.q(i, f) = scratch.sums.gradient(f);
  }
  for (Index j = 0; j < target.n; ++j) {
    gradient.key(j, q, scratch);
    for (Index f = 0; f < q.dim(); ++f) result.k(j, f) = scratch.sums.gradient(f);
  }
  return result;
}

}  // namespace headfit
