/*
 * Frames on a link of shared memory: virtio header, Ethernet, IPv4 and UDP between two fixed ends with nobody else on it. The two
 * sides of one device (vring.c, vhost.c) share this.
 */
#ifndef NR_IO_LINK_H
#define NR_IO_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "hello.h"
#include "vhost_user.h"

/* Bytes that stand before the payload in a frame: Ethernet, IPv4, UDP. */
#define NR_LINK_HEADERS (14 + 20 + 8)
/* The same with the virtio header, as it stands in a buffer. */
#define NR_LINK_PREFIX (12 + NR_LINK_HEADERS)

static_assert(sizeof(struct nr_virtio_header) + NR_LINK_HEADERS == NR_LINK_PREFIX, "virtio header");

struct nr_link {
    uint8_t prefix[NR_LINK_PREFIX]; /* of every frame sent; lengths, checksum and count of buffers are zero */
    uint8_t local[6];               /* this end's address and port as they stand in a frame */
    uint32_t ip_sum;                /* of the IPv4 header in prefix, not folded */
};

void nr_link_prepare(struct nr_link *link, const struct nr_vhost_end *local, const struct nr_vhost_end *remote);

static inline uint16_t nr_link_get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline void nr_link_put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* Writes NR_LINK_PREFIX bytes before so many of payload. `buffers`: how many the frame fills when received, 0 when sent. */
static inline void nr_link_write(const struct nr_link *link, uint8_t *at, uint32_t payload, uint16_t buffers)
{
    uint8_t *ip = at + sizeof(struct nr_virtio_header) + 14;
    uint32_t sum = link->ip_sum + payload + 28;

    memcpy(at, link->prefix, NR_LINK_PREFIX);
    memcpy(at + 10, &buffers, sizeof(buffers));
    nr_link_put16(ip + 2, payload + 28);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    nr_link_put16(ip + 10, ~sum & 0xffff);
    nr_link_put16(ip + 24, payload + 8);
}

/* Finds the payload in a frame (without virtio header) of `length` bytes. False for what is not UDP for this end. */
static inline bool nr_link_parse(const struct nr_link *link, const uint8_t *frame, uint32_t length, const uint8_t **payload,
                                 uint32_t *payload_length)
{
    const uint8_t *ip = frame + 14, *udp = ip + 20;

    if (length < NR_LINK_HEADERS || nr_link_get16(frame + 12) != 0x0800 || ip[0] != 0x45 || ip[9] != 17 ||
        (nr_link_get16(ip + 6) & 0x3fff) != 0)
        return false;
    uint32_t ip_length = nr_link_get16(ip + 2), udp_length = nr_link_get16(udp + 4);
    if (ip_length > length - 14 || udp_length < 8 || udp_length + 20 > ip_length)
        return false;
    if (memcmp(ip + 16, link->local, 4) != 0 || memcmp(udp + 2, link->local + 4, 2) != 0)
        return false;
    *payload = udp + 8;
    *payload_length = udp_length - 8;
    return true;
}

#endif
