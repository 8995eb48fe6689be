// Threads that are joined when the object ends. std::jthread would do the same, but libc++, the
// standard library of macOS, has had it by default since its version 20 only.
#pragma once

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

namespace headfit {

class JoiningThreads {
 public:
  JoiningThreads() = default;
  JoiningThreads(const JoiningThreads&) = delete;
  JoiningThreads& operator=(const JoiningThreads&) = delete;
  ~JoiningThreads() {
    for (std::thread& thread : threads_) thread.join();
  }

  void reserve(std::size_t count) { threads_.reserve(count); }

  // Throws std::system_error where the system has no more threads to give.
  template <class Work>
  void start(Work&& work) {
    threads_.emplace_back(std::forward<Work>(work));
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace headfit
