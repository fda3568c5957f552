/* A pool read through a page table. Plain C but for the look-up. */
#pragma once

#include <stdint.h>

typedef struct {
  const uint8_t *pool;
  const int32_t *table; /* [R][width] page id by page number */
  int32_t width;
  int32_t page_rows;
  int32_t pages; /* the bound of every id */
  int32_t pad;
} PagedRows;
