/* Parameters of the compress kernels: those of every compressor. */
#pragma once
#include "common/compress.h"
