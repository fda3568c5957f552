// The element math of common/hd.h as plain functions, for the tests that hold it to the Rust side in every bit.
#include "../common/hd.h"

extern "C" {
float flashlane_host_bf16_to_float(uint16_t x) { return bf16_to_float(x); }
uint16_t flashlane_host_float_to_bf16(float x) { return float_to_bf16(x); }
float flashlane_host_e4m3_to_float(uint8_t x) { return e4m3_to_float(x); }
uint8_t flashlane_host_float_to_e4m3(float x) { return float_to_e4m3(x); }
float flashlane_host_e2m1_to_float(uint8_t x) { return e2m1_to_float(x); }
uint8_t flashlane_host_float_to_e2m1(float x) { return float_to_e2m1(x); }
float flashlane_host_ue8m0_to_float(uint8_t x) { return ue8m0_to_float(x); }
float flashlane_host_ue8m0_reciprocal(uint8_t x) { return ue8m0_reciprocal(x); }
uint8_t flashlane_host_e4m3_tile_scale(float amax) { return e4m3_tile_scale(magnitude_bits(amax)); }
uint8_t flashlane_host_e2m1_tile_scale(float amax) { return e2m1_tile_scale(magnitude_bits(amax)); }
}
