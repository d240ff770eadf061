/* EAL and ports of a test's process: started, or the process ends with the reason. */
#ifndef NR_DPDK_TESTS_EAL_PROCESS_H
#define NR_DPDK_TESTS_EAL_PROCESS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dpdk/eal.h"
#include "dpdk/port.h"

/* Without hugepages and PCI; `vdev` may be NULL. */
static inline int start_eal(const char *vdev, const char *megabytes, char text[NR_EAL_TEXT])
{
    static char prefix[32];
    const char *arguments[] = {"test_port",     "--no-pci",
                               "--no-huge",     "-m",
                               megabytes,       "--no-telemetry",
                               "--file-prefix", prefix,
                               "--log-level",   "lib.vhost.config:warning",
                               "--vdev",        vdev};

    snprintf(prefix, sizeof(prefix), "nr-%d", (int)getpid());
    return nr_eal_start(vdev != NULL ? 12 : 10, arguments, text);
}

static inline void must_start(const char *vdev, const char *megabytes)
{
    char text[NR_EAL_TEXT];
    int result = start_eal(vdev, megabytes, text);

    if (result != 0) {
        fprintf(stderr, "EAL: %d: %s\n", result, text);
        exit(1);
    }
}

static inline struct nr_packet_io *must_open(const struct nr_port_config *config)
{
    char text[256];
    int error;
    struct nr_packet_io *io = nr_port_open(config, &error, text);

    if (io == NULL) {
        fprintf(stderr, "%s: %d: %s\n", config->device, error, text);
        exit(1);
    }
    return io;
}

/* An IPv4 or IPv6 peer on Ethernet. `port` in host order. */
static inline void make_peer(struct nr_peer *peer, const uint8_t *address, uint32_t bytes, uint16_t port, const uint8_t mac[6])
{
    memset(peer, 0, sizeof(*peer));
    peer->bytes[0] = bytes == 4 ? 4 : 6;
    peer->bytes[2] = (uint8_t)(port >> 8);
    peer->bytes[3] = (uint8_t)port;
    memcpy(peer->bytes + 4, address, bytes);
    peer->length = bytes == 4 ? NR_PEER_LENGTH_IP4 : NR_PEER_LENGTH_IP6;
    memcpy(peer->bytes + peer->length, mac, 6);
}

#endif
