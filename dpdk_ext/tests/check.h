/* The checks of the C unit tests: the first that fails says where and ends the process with 1. */
#ifndef NR_TESTS_CHECK_H
#define NR_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                                           \
    do {                                                                                                                           \
        if (!(condition)) {                                                                                                        \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition);                                  \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

#define CHECK_EQUAL(a, b)                                                                                                          \
    do {                                                                                                                           \
        long long left_ = (long long)(a), right_ = (long long)(b);                                                                 \
        if (left_ != right_) {                                                                                                     \
            fprintf(stderr, "%s:%d: %s: %s is %lld, %s is %lld\n", __FILE__, __LINE__, __func__, #a, left_, #b, right_);           \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

#endif
