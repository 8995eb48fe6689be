#include "headfit/logits/packed_keys.hpp"

namespace headfit::detail {
namespace {

// Padding keys are never read. A key is packed if at least one of the query heads that share its
// head may attend to it.
template <class T>
Index valid_rows(const LogitSource<T>& source, Index key_head) {
  if (!source.mask.key_lengths) return source.k.rows;
  const Index* lengths = source.mask.key_lengths + key_head * source.group;
  return *std::max_element(lengths, lengths + source.group);
}

}  // namespace

template <class T>
PackedKeys<T>::PackedKeys(const LogitSource<T>& source, Index first_head, Index heads,
                          const Run& run)
    : first_(first_head),
      panels_(round_up(source.k.rows, Blocking<T>::panel) / Blocking<T>::panel),
      panel_size_(source.k.cols * Blocking<T>::panel),
      max_abs_(static_cast<std::size_t>(heads), 0.0) {
  data_.ensure(heads * panels_ * panel_size_);
  constexpr Index per_task = 64;
  const Index tasks = (panels_ + per_task - 1) / per_task;
  std::vector<T> task_max(static_cast<std::size_t>(heads * tasks), T(0));
  parallel_tasks(heads * tasks, run, [&] {
    return [&, keys = HeadRows<T>(source.k), pace = Checkpoints()](Index task) mutable {
      const Index head = first_ + task / tasks;
      const Index begin = task % tasks * per_task;
      const Index end = std::min(begin + per_task, panels_);
      const Index rows = valid_rows(source, head);
      T& largest = task_max[static_cast<std::size_t>(task)];
      for (Index p = begin; p < end; ++p) {
        largest = std::max(largest, pack_panel(keys, head, p, rows, panel(head, p), pace));
      }
    };
  });
  for (std::size_t t = 0; t < task_max.size(); ++t) {
    double& largest = max_abs_[t / static_cast<std::size_t>(tasks)];
    largest = std::max(largest, static_cast<double>(task_max[t]));
  }
}

template class PackedKeys<float>;
template class PackedKeys<double>;

}  // namespace headfit::detail
