/* Parameters of the index_store kernel: those of every compressor. */
#pragma once
#include "common/compress.h"
