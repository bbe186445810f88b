/* Numbers in messages: little-endian, whatever the machine. */
#ifndef COMM_LITTLE_ENDIAN_H
#define COMM_LITTLE_ENDIAN_H

#include <stddef.h>
#include <stdint.h>

static inline void put_le(uint8_t *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *from, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

#endif
