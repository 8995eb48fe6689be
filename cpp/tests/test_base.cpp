// Threads and random streams.
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "check.hpp"
#include "headfit/base/number_format.hpp"
#include "headfit/base/threads.hpp"
#include "headfit/base/worker_pool.hpp"
#include "headfit/random/philox.hpp"

using namespace headfit;

TEST(philox_known_answers) {
  // The vectors of Random123's kat_vectors file for philox4x32-10.
  CHECK((Philox(0)(0, 0) == RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t(0);
  CHECK((Philox(ones)(ones, ones) == RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: the digits of pi.
  CHECK((Philox(0x299f31d0a4093822ull)(0x0370734413198a2eull, 0x85a308d3243f6a88ull) ==
         RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

#if defined(__SSE2__)
TEST(every_thread_computes_in_standard_arithmetic) {
  const unsigned found = _mm_getcsr();
  const unsigned flushing = found | 0x8040;  // flush to zero, denormals are zero
  const auto halved = [](double x) {
    volatile double y = x;
    return y * 0.5;
  };
  _mm_setcsr(flushing);
  CHECK(halved(std::numeric_limits<double>::min()) == 0);
  std::atomic<int> right{0};
  Run run{4, {}};
  const auto body = [&](Index) { right += halved(std::numeric_limits<double>::min()) > 0; };
  parallel_for(100, run, body);
  WorkerPool pool(3);
  run.helpers = &pool;
  parallel_for(100, run, body);
  {
    const StandardArithmetic arithmetic;
    CHECK(halved(std::numeric_limits<double>::min()) > 0);
  }
  // The mode is what it was before, except for the sticky flags.
  CHECK((_mm_getcsr() & ~0x3fu) == (flushing & ~0x3fu));
  _mm_setcsr(found);
  CHECK_THAT(right == 200, right);
}
#endif

TEST(reader_walks_the_stream) {
  const std::uint64_t first = 0xfffffffeull;  // the high word of the place changes on the way
  std::uint32_t words[4][64];
  Philox(7).blocks(5, first, words);
  for (std::uint64_t b = 0; b < 64; ++b) {
    const RandomBlock one = Philox(7)(5, first + b);
    for (std::size_t w = 0; w < 4; ++w) CHECK(words[w][b] == one[w]);
  }
  PhiloxReader reader(7, 3);
  const Philox philox(7);
  for (std::uint64_t block = 0; block < 5; ++block) {
    for (const std::uint32_t word : philox(3, block)) CHECK(reader.next() == word);
  }
}

TEST(below_is_in_range_and_even) {
  for (const std::uint32_t bound : {1u, 2u, 3u, 10u, 0x80000001u, 0xffffffffu}) {
    PhiloxReader reader(bound, 1);
    for (int i = 0; i < 200; ++i) CHECK(reader.below(bound) < bound);
  }
  std::array<int, 6> counts{};
  PhiloxReader dice(11, 0);
  for (int i = 0; i < 60000; ++i) ++counts[dice.below(6)];
  for (const int count : counts) CHECK_THAT(std::abs(count - 10000) < 500, count);
}

TEST(messages_show_numbers_as_typed) {
  const InputError error("got ", 0.1f, ", ", 1e-60, " and ", -7, " of ", std::size_t{12},
                         std::string("!"));
  CHECK(std::string(error.what()) == "got 0.1, 1e-60 and -7 of 12!");
  const Error copied(error);
  CHECK(std::string(copied.what()) == error.what());
}

TEST(every_task_runs_once) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    for (const Index tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      parallel_for(tasks, {threads, {}}, [&](Index t) { ++runs[static_cast<std::size_t>(t)]; });
      for (const auto& count : runs) CHECK(count == 1);
    }
  }
}

TEST(workers_are_made_once_a_thread) {
  for (const int threads : {1, 3, 8}) {
    std::atomic<int> made{0};
    parallel_tasks(5, {threads, {}}, [&] {
      ++made;
      return [](Index) {};
    });
    CHECK_THAT(made == std::min(threads, 5), made.load());
  }
}

TEST(earliest_error_wins_for_every_number_of_threads) {
  for (const int threads : {1, 2, 3, 8}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      const auto body = [](Index task) {
        if (task == 40) std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (task >= 40) throw InputError("task ", task);
      };
      CHECK_THROWS(InputError, "task 40", parallel_for(200, {threads, {}}, body));
    }
  }
}

TEST(an_error_in_making_a_worker_is_reported) {
  const auto make = []() -> std::function<void(Index)> { throw InputError("no memory"); };
  for (const int threads : {1, 3}) {
    CHECK_THROWS(InputError, "no memory", parallel_tasks(10, {threads, {}}, make));
  }
}

TEST(poll_interrupts_from_the_calling_thread) {
  for (const int threads : {1, 2, 3}) {
    const auto caller = std::this_thread::get_id();
    std::atomic<Index> done{0};
    std::atomic<bool> elsewhere{false};
    const auto poll = [&] {
      if (std::this_thread::get_id() != caller) elsewhere = true;
      throw Interrupted();
    };
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS(Interrupted, "interrupted", parallel_for(100000, {threads, poll}, [&](Index) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++done;
    }));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    CHECK_THAT(took.count() < 5, took.count());
    CHECK(done < 100000);
    CHECK(!elsewhere);
  }
}

TEST(short_work_never_polls) {
  int polled = 0;
  parallel_for(3, {2, [&] { ++polled; }}, [](Index) {});
  CHECK(polled == 0);
}

// Each task would take a minute. With one thread the calling thread polls at the checkpoints of a
// task; with several it may also poll while it waits for the others.
TEST(checkpoints_interrupt_within_a_task) {
  for (const int threads : {1, 2, 3}) {
    const auto poll = [] { throw Interrupted(); };
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] { return std::chrono::steady_clock::now() - start; };
    CHECK_THROWS(Interrupted, "interrupted", parallel_for(threads, {threads, poll}, [&](Index) {
      while (elapsed() < std::chrono::minutes(1)) checkpoint();
    }));
    CHECK_THAT(elapsed() < std::chrono::seconds(5), threads);
  }
}

TEST(a_poll_outside_reaches_checkpoints_of_regions_within) {
  for (const int threads : {1, 3}) {
    const std::function<void()> poll = [] { throw Interrupted(); };
    const Interruptible here(poll);
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] { return std::chrono::steady_clock::now() - start; };
    const auto wait = [&](Index) {
      while (elapsed() < std::chrono::minutes(1)) checkpoint();
    };
    CHECK_THROWS(Interrupted, "interrupted", parallel_for(threads, {threads, {}}, [&](Index) {
      parallel_for(2, {2, {}}, wait);
    }));
    CHECK_THAT(elapsed() < std::chrono::seconds(5), threads);
  }
  checkpoint();  // does nothing, since no Interruptible is left
}

// An error in one task does not stop the others: an earlier task may fail later, and its error is
// the one to throw.
TEST(only_interrupts_stop_tasks_at_work) {
  for (const int threads : {2, 3}) {
    std::atomic<bool> failed{false};
    const auto body = [&](Index task) {
      if (task > 0) {
        failed = true;
        throw InputError("task ", task);
      }
      while (!failed) std::this_thread::yield();
      for (int turn = 0; turn < 1000; ++turn) checkpoint();
      throw InputError("task 0");
    };
    CHECK_THROWS(InputError, "task 0", parallel_for(2, {threads, [] {}}, body));
  }
}

TEST(work_without_helpers_does_not_wait_for_work_of_others) {
  WorkerPool pool(1);
  std::atomic<int> begun{0};
  std::atomic<bool> ended{false}, in_time{true};
  std::thread other;
  pool.run(0, [&] {
    other = std::thread([&] {
      pool.run(1, [&] {
        ++begun;
        const auto start = std::chrono::steady_clock::now();
        while (!ended && in_time) {
          if (std::chrono::steady_clock::now() - start > std::chrono::seconds(10)) in_time = false;
        }
      });
    });
    while (begun < 2) std::this_thread::yield();
  });
  ended = true;
  other.join();
  CHECK(in_time);
}

TEST(checkpoints_come_after_so_much_work) {
  int polled = 0;
  std::atomic<bool> stop{false};
  const std::function<void()> poll = [&] { ++polled; };
  const Interruptible here(poll, &stop);
  Checkpoints checkpoints;
  checkpoints.after(1);
  stop = true;
  checkpoints.after(1);
  CHECK_THROWS(Interrupted, "interrupted", checkpoints.after(Index(1) << 40));
  CHECK(here.was_stopped());
}

TEST(thread_count_is_clamped) {
  CHECK((Run{8, {}}.thread_count(3) == 3));
  CHECK((Run{2, {}}.thread_count(3) == 2));
  CHECK((Run{5, {}}.thread_count(0) == 1));
  CHECK((Run{0, {}}.thread_count(1000000) >= 1));
}

TEST(rounding_to_float32_is_what_the_machine_does) {
  const Philox random(5);
  const NumberFormat format = NumberFormat::float32();
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const auto words = random(i, 0);
    const double fraction = 1 + (static_cast<double>(words[0]) + words[1] * 0x1p-32) * 0x1p-32;
    const int exponent = static_cast<int>(words[3] % 300) - 160;
    const double x = std::ldexp(words[2] % 2 ? fraction : -fraction, exponent);
    CHECK_THAT(format.rounded(x) == static_cast<double>(static_cast<float>(x)), x);
  }
  // Halfway cases are rounded to even, and numbers that are too large to infinity.
  const NumberFormat narrow = NumberFormat::bfloat16();
  CHECK_THAT(narrow.rounded(1 + 0x1p-8) == 1, "tie down to even");
  CHECK_THAT(narrow.rounded(1 + 3 * 0x1p-8) == 1 + 0x1p-6, "tie up to even");
  CHECK_THAT(NumberFormat::float16().rounded(65519.9) == 65504, "the largest");
  CHECK_THAT(std::isinf(NumberFormat::float16().rounded(65520)), "beyond the largest");
  CHECK_THAT(NumberFormat::float16().spacing(0) == 0x1p-24, "denormal");
  CHECK_THAT(NumberFormat::float8_e4m3fn().rounded(464) == 448, "a tie at the largest");
  CHECK_THAT(std::isinf(NumberFormat::float8_e4m3fn().rounded(464.1)), "beyond it");
  CHECK_THAT(NumberFormat::float8_e4m3fn().spacing(0) == 0x1p-9, "denormal");
  CHECK_THAT(std::isinf(NumberFormat::float8_e5m2().rounded(61440)), "a tie beyond the largest");
  CHECK_THAT(NumberFormat::float8_e5m2().rounded(-0x1p-17) == 0, "a tie at zero");
  CHECK_THAT(narrow.spacing(1) == 0x1p-7 && narrow.spacing(0.999) == 0x1p-8, "binades");
}
