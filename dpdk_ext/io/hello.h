/*
 * The first words on a vhost socket, before vhost-user: who the client is, and whether it may have a device. Little-endian.
 *
 * The client sends nr_vhost_hello, the server answers with nr_vhost_answer; when its status is 0, vhost-user messages follow on the
 * same connection, else the server closes it.
 *
 * Once the device is ready, each byte from the server on the connection is a bell: the receive ring has something and its client
 * asked to be told. The call eventfds of vhost-user stay unused, as a client can make a write to its eventfd block its writer; what
 * is sent on a socket can be made not to.
 */
#ifndef NR_IO_HELLO_H
#define NR_IO_HELLO_H

#include <assert.h>
#include <stdint.h>

#define NR_VHOST_MAGIC 0x5648524eu /* "NRHV" */
#define NR_VHOST_HELLO_VERSION 1u

struct nr_vhost_hello {
    uint32_t magic;       /* NR_VHOST_MAGIC */
    uint32_t version;     /* NR_VHOST_HELLO_VERSION */
    uint8_t identity[16]; /* random, the client's own for all its connections: after a reconnection it is the same peer */
};

/* One end of the link. */
struct nr_vhost_end {
    uint8_t mac[6];
    uint8_t address[4]; /* IPv4 */
    uint16_t port;      /* UDP, host order */
};

struct nr_vhost_answer {
    uint32_t magic;              /* NR_VHOST_MAGIC */
    uint32_t version;            /* NR_VHOST_HELLO_VERSION */
    int32_t status;              /* 0, or a negative errno: -EUSERS (too many clients), -EPROTONOSUPPORT (version) */
    uint32_t limit;              /* clients at once */
    uint32_t max_payload;        /* bytes of UDP payload */
    struct nr_vhost_end client;  /* its end of the link */
    struct nr_vhost_end server;
};

static_assert(sizeof(struct nr_vhost_hello) == 24, "the same on both sides");
static_assert(sizeof(struct nr_vhost_answer) == 44, "the same on both sides");

#endif
