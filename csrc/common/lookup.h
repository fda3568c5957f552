// Where a row of a paged pool lies. A wrong table corrupts values, never addresses.
#pragma once

#include "kernel.h"
#include "pages.h"

// The page id of `row` of `request`, or -1 where the table ends or names no page.
FL_DEVICE int32_t page_of(const PagedRows& paged, int64_t request, int row) {
  int number = row / paged.page_rows;
  if (row < 0 || number >= paged.width) return -1;
  int32_t id = paged.table[request * paged.width + number];
  return id >= 0 && id < paged.pages ? id : -1;
}
