// How the numbers of an index are stored.
#pragma once

#include <string>

#include "headfit/base/types.hpp"

namespace headfit {

// Floats of 8 to 32 bits, or whole numbers of 8 or 4. Those of 8 bits and less are multiplied by a
// scale of each row, a bfloat16 number at which the largest of the row is the largest that there is;
// or keys have none, and are cut off there.
class IndexFormat {
 public:
  // float32, float16, bfloat16, float8_e4m3fn, int8 or int4; the last three also with "-unscaled".
  explicit IndexFormat(const std::string& dtype = "float32");

  // Round each row to what is stored of it. Write the scales of the rows, which are 1 where the
  // format has none.
  void round_keys(Matrix<float>& x, Vector<float>& scales) const { round(x, scales, scales_keys_); }
  void round_queries(Matrix<float>& x, Vector<float>& scales) const { round(x, scales, true); }

 private:
  void round(Matrix<float>& x, Vector<float>& scales, bool scaled) const;

  enum class Kind { single, half, brain, quarter, whole };
  Kind kind_;
  float largest_ = 0;  // of the numbers before they are multiplied; 0 where they need no scale
  bool scales_keys_ = true;
};

}  // namespace headfit
