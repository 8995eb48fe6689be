// The whole test framework: TEST registers a function, CHECK counts what is wrong.
#pragma once

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace headfit::test {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  if (++failures() <= 20) std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  out.precision(17);
  (out << ... << parts);
  return out.str();
}

template <class Expected, class F>
void check_throws(const char* file, int line, const std::string& part, F&& f) {
  try {
    f();
    fail(file, line, "no error; expected one with: " + part);
  } catch (const Expected& error) {
    if (std::string(error.what()).find(part) == std::string::npos) {
      fail(file, line, "expected '" + part + "' in '" + error.what() + "'");
    }
  } catch (const std::exception& error) {
    fail(file, line, std::string("wrong type of error: ") + error.what());
  }
}

inline int run_all() {
  for (const Case& test : cases()) {
    const int before = failures();
    try {
      test.body();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("unexpected error: ") + error.what());
    }
    std::printf("%-52s %s\n", test.name, failures() == before ? "ok" : "FAILED");
  }
  if (cases().empty()) fail("main", 0, "no tests");
  return failures() == 0 ? 0 : 1;
}

}  // namespace headfit::test

#define TEST(name)                                                              \
  static void name();                                                           \
  static const headfit::test::Registration registration_of_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) headfit::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)

// The parts after the condition are printed when it fails.
#define CHECK_THAT(condition, ...)                                                                 \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      headfit::test::fail(__FILE__, __LINE__, #condition ": " + headfit::test::text(__VA_ARGS__)); \
    }                                                                                              \
  } while (false)

#define CHECK_THROWS(type, part, ...) \
  headfit::test::check_throws<type>(__FILE__, __LINE__, part, [&] { __VA_ARGS__; })
