/* Names made from the parameters of the included kernel templates: JOIN(float32, _sum) is float32_sum. */
#ifndef COMPUTE_PASTE_H
#define COMPUTE_PASTE_H

#define JOIN_EXPANDED(a, b) a##b
#define JOIN(a, b) JOIN_EXPANDED(a, b)

#endif
