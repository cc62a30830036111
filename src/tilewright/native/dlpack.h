/* The part of DLPack 1.x that the launcher uses: how a tensor is described, and the exchange table of a tensor type
 * (attribute `__dlpack_c_exchange_api__`). Layouts follow the published ABI of major version 1. */
#ifndef TW_DLPACK_H
#define TW_DLPACK_H

#include <stdint.h>

typedef struct {
    int32_t type;
    int32_t id;
} dl_device;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} dl_dtype;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct {
    uint32_t major, minor;
    void *previous;
    void *allocate;
    void *from_object;
    void *to_object;
    int (*describe)(void *object, dl_tensor *out); /* non-owning; 0, or -1 with a Python exception set */
    void *current_stream;
} dl_exchange;

#endif
