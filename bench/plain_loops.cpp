#include "plain_loops.h"

#include <algorithm>
#include <cmath>

namespace flexsn::plain {

void lif(const float* x, float* s, float* v, Part part) {
  for (std::int64_t t = 0; t < part.steps; ++t) {
    for (std::int64_t n = part.first; n < part.last; ++n) {
      const float h = v[n] + (x[t * part.elements + n] - v[n]) * 0.5f;
      s[t * part.elements + n] = h >= 1 ? 1.0f : 0.0f;
      v[n] = h >= 1 ? 0.0f : h;
    }
  }
}

void lif_forward(const float* x, float* s, float* h, float* v, Part part) {
  std::fill(v + part.first, v + part.last, 0.0f);
  for (std::int64_t t = 0; t < part.steps; ++t) {
    for (std::int64_t n = part.first; n < part.last; ++n) {
      const float potential = v[n] + (x[t * part.elements + n] - v[n]) * 0.5f;
      h[t * part.elements + n] = potential;
      s[t * part.elements + n] = potential >= 1 ? 1.0f : 0.0f;
      v[n] = potential >= 1 ? 0.0f : potential;
    }
  }
}

void lif_backward(const float* h, const float* gs, float* gx, float* gv, Part part) {
  std::fill(gv + part.first, gv + part.last, 0.0f);
  for (std::int64_t t = part.steps - 1; t >= 0; --t) {
    for (std::int64_t n = part.first; n < part.last; ++n) {
      const float potential = h[t * part.elements + n], over = potential - 1;
      const float slope = std::max(0.0f, 1 - std::fabs(over));
      const float kept = over >= 0 ? 0.0f : gv[n];
      const float gh = kept + (gs[t * part.elements + n] - gv[n] * potential) * slope;
      gx[t * part.elements + n] = 0.5f * gh;
      gv[n] = 0.5f * gh;
    }
  }
}

}  // namespace flexsn::plain
