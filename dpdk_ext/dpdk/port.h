/*
 * Packet I/O on a DPDK port: any ethdev, physical or virtual. EAL must have been started.
 *
 * Frames are Ethernet, IPv4 or IPv6, UDP. The port answers ARP, IPv6 neighbour solicitations and ping for its own addresses;
 * answers to datagrams go to the MAC that the request came from. One queue pair; burst sizes, mempools and descriptor counts are
 * reckoned from the configuration and the driver's limits.
 *
 * Late references. A segment that leaves as a reference is held until its mbuf is freed: by the driver, when it next looks at what it
 * has sent, or by whoever received the mbuf within this process, on any thread. `sent` is called for it by the owner alone: when
 * receive_burst begins, when send_burst ends (the same one, where the driver sends at once), and at close. A port that is neither
 * polled nor sent through gives nothing back; one that is polled asks its driver every 64 empty polls, if the driver can be asked.
 */
#ifndef NR_DPDK_PORT_H
#define NR_DPDK_PORT_H

#include "../io/packet_io.h"

/* How to open one. Zero means the default where one is named. Copied: nothing needs to outlive the call. */
struct nr_port_config {
    const char *device;   /* EAL's name of the port: a PCI address ("0000:03:00.0") or that of a vdev ("net_af_packet0") */
    uint8_t ip4[4];       /* its IPv4 address; zeros: none */
    uint8_t ip6[16];      /* its IPv6 address; zeros: none (the link-local one of the MAC is always answered for) */
    uint16_t udp_port;    /* UDP destination port; host order */
    uint16_t mtu;         /* bytes of IP packet; 0: 1500 */
    uint32_t descriptors; /* of each queue at most; default: as many as a window of credits needs, within the driver's limits */
    uint32_t max_payload; /* bytes; clamps what max_payload reports below NR_MAX_DATAGRAM */
    nr_sent_fn sent;      /* see nr_packet_io; of a segment that left as a reference see "Late references" below */
    void *sent_context;   /* see nr_packet_io */
    const void *slab;     /* where segments point to, registered as external memory; NULL: segments are copied */
    uint64_t slab_bytes;
    bool zero_checksum;   /* without offload send IPv4 datagrams without UDP checksum: a memory to memory link needs none */
};

/* What was got. */
struct nr_port_info {
    char driver[32];           /* "net_af_packet" */
    uint8_t mac[6];
    uint16_t port_id;
    uint16_t mtu;
    uint16_t rx_descriptors, tx_descriptors;
    uint32_t mbufs;            /* in the receive pool; the send pool has no more */
    uint32_t mbuf_bytes;       /* of one mbuf's data room */
    uint64_t memory_bytes;     /* of all pools */
    uint8_t checksum_offload;  /* 1: IPv4 header checksum verified by the port, 2: UDP checksum sent, 4: UDP checksum verified */
    uint8_t zero_copy;         /* segments leave as external mbufs */
    uint8_t link_up;
};

/* Frames by what became of them, since creation. */
struct nr_port_counters {
    uint64_t arp, neighbour, ping;   /* answered */
    uint64_t not_ours;               /* see NR_FRAME_NOT_OURS */
    uint64_t bad_length;             /* lengths that contradict each other or the frame */
    uint64_t bad_checksum;
    uint64_t fragments;              /* of IP: never reassembled */
    uint64_t no_mbuf;                /* frames to send that found a pool empty: the whole frame is dropped */
    uint64_t missed;                 /* by the device, for want of descriptors or mbufs */
    uint64_t copied_segments, external_segments;
};

/*
 * Configures and starts the port. NULL on failure, with *error a negative errno and `text` one line that says what and how to mend
 * it: -ENODEV (no such port), -EINVAL (the device cannot do what the configuration asks for), -ENOMEM (mempool), others from the
 * driver.
 */
struct nr_packet_io *nr_port_open(const struct nr_port_config *config, int *error, char text[256]);

/* The io must come from nr_port_open(). Info may be asked for from any thread, counters from the owner's. */
void nr_port_info(struct nr_packet_io *io, struct nr_port_info *info);
void nr_port_counters(struct nr_packet_io *io, struct nr_port_counters *counters);

#endif
