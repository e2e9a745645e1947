// Surrogates: the value of a hard threshold with the gradient of something smoother.
#include <numbers>

#include "trace.h"

namespace flexsn {

namespace surrogate {

Surrogate sigmoid(double alpha) {
  return {"sigmoid",
          [alpha](const Value& u) {
            const Value s = flexsn::sigmoid(alpha * u);
            return alpha * ((1.0 - s) * s);
          },
          [alpha](const Value& u) { return flexsn::sigmoid(alpha * u); }};
}

Surrogate atan(double alpha) {
  const double slope = std::numbers::pi * alpha / 2;
  return {"atan",
          [alpha, slope](const Value& u) {
            const Value scaled = slope * u;
            return (alpha / 2) / (1.0 + scaled * scaled);
          },
          [slope](const Value& u) { return flexsn::atan(slope * u) / std::numbers::pi + 0.5; }};
}

Surrogate triangle(double alpha) {
  const double square = alpha * alpha;
  return {"triangle", [=](const Value& u) { return maximum(alpha - square * abs(u), 0.0); },
          [=](const Value& u) {
            const Value inside = alpha * u + 0.5 - (square / 2) * (u * abs(u));
            return select(abs(u) <= 1 / alpha, inside, select(u > 0.0, like(u, 1), like(u, 0)));
          }};
}

Surrogate rectangle(double alpha) {
  return {"rectangle",
          [alpha](const Value& u) { return select(abs(u) < 1 / (2 * alpha), like(u, alpha), like(u, 0)); },
          [alpha](const Value& u) { return clamp(alpha * u + 0.5, 0.0, 1.0); }};
}

Surrogate super_spike(double alpha) {
  return {"super_spike",
          [alpha](const Value& u) {
            const Value distance = abs(u) + 1.0;
            return alpha / (distance * distance);
          },
          {}};
}

}  // namespace surrogate

Value spike(const Operand& u, const Surrogate& surrogate) {
  const Trace::Lines lines(u);
  const Value& distance = Trace::value_of(u);
  if (Trace::is_smooth(distance) && surrogate.smooth) return surrogate.smooth(distance);
  const Value fired = select(distance >= 0.0, like(distance, 1), like(distance, 0));
  // The derivative of u * constant is that constant, so any derivative can be given as a formula.
  return with_grad(fired, distance * detach(surrogate.derivative(distance)));
}

}  // namespace flexsn
