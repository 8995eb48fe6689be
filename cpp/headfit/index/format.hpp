// How the numbers of an index are stored.
#pragma once

#include <string>

#include "headfit/base/types.hpp"

namespace headfit {

// Floats of 8 to 32 bits, or whole numbers of 8 or 4. Those of 8 bits and less are multiplied by a
// scale of each row, a bfloat16 number at which the largest of the row is the largest that there is.
class IndexFormat {
 public:
  // float32, float16, bfloat16, float8_e4m3fn, int8 or int4.
  explicit IndexFormat(const std::string& dtype = "float32");

  bool has_scale() const { return largest_ > 0; }
  // Rounds each row to what is stored of it. Writes the scales of the rows, which are 1 where the
  // format has none.
  void round(Matrix<float>& x, Vector<float>& scales) const;

 private:
  enum class Kind { single, half, brain, quarter, whole };
  Kind kind_;
  float largest_ = 0;  // of the numbers before they are multiplied
};

}  // namespace headfit
