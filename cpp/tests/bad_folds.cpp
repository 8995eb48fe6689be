// Classes that are no folds. The compiler must refuse each of them, with a message that says what
// it lacks (CMakeLists.txt builds one at a time).
#include "headfit/logits/stream.hpp"

using namespace headfit;

struct Blocks {
  void begin(const RowBlock&) {}
  void end(const RowBlock&) {}
};

#if defined(NO_END)
struct Bad {
  void begin(const RowBlock&) {}
  void tile(const RowBlock&, const Tile<float>&) {}
};
#elif defined(NO_TILE)
struct Bad : Blocks {};
#elif defined(TILE_OF_DOUBLE)
struct Bad : Blocks {
  void tile(const RowBlock&, const Tile<double>&) {}
};
#elif defined(NO_HITS)
struct Bad : Blocks {
  const float* limits(const RowBlock&) { return nullptr; }
};
#elif defined(NO_SETTLE)
struct Bad : Blocks {
  const float* limits(const RowBlock&) { return nullptr; }
  void hits(const RowBlock&, Index, Index, const float*, std::uint32_t) {}
  void tile(const RowBlock&, const Tile<float>&) {}
  ExpSums<float> sums(const RowBlock&) { return {}; }
};
#endif

int main() {
  stream_tiles(LogitSource<float>(), Run(), [] { return Bad(); });
}
