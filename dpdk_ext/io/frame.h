/*
 * Ethernet frames of a host with one IPv4 address, one IPv6 address and one UDP port: finds the datagrams in them, answers those
 * that ask where the host is, and makes the headers of what it sends. Knows no device; keeps nothing between two frames.
 *
 * Received: untagged frames and frames tagged with VLAN 0 (a priority alone), IPv4 without options, IPv6 without extension headers,
 * no fragments. Frames may say anything: nothing is read beyond `length`. They must not change meanwhile: shared memory is copied
 * first.
 */
#ifndef NR_IO_FRAME_H
#define NR_IO_FRAME_H

#include "packet_io.h"

enum {
    NR_FRAME_ETHERNET = 14,    /* bytes of Ethernet header, untagged */
    NR_FRAME_HEADERS_IP4 = 42, /* bytes of Ethernet, IPv4 and UDP headers */
    NR_FRAME_HEADERS_IP6 = 62, /* bytes of Ethernet, IPv6 and UDP headers */
    NR_FRAME_TAG = 4,          /* bytes of a VLAN tag */
    NR_FRAME_ANSWER = 86,      /* bytes of an answer other than to ping */
};

/* Whose frames they are. All zeros: no such address. */
struct nr_frame_host {
    uint8_t mac[6];
    uint8_t ip4[4];
    uint8_t ip6[16];
    uint8_t link_local[16]; /* IPv6, of the MAC: nr_frame_link_local() */
    uint16_t udp_port;      /* host order */
};

/* What a received frame is. */
enum nr_frame {
    NR_FRAME_DATAGRAM,     /* for us */
    NR_FRAME_ARP,          /* asks for our MAC: answer it */
    NR_FRAME_NEIGHBOUR,    /* the same in IPv6 */
    NR_FRAME_PING,         /* echo request to us: answer it */
    NR_FRAME_NOT_OURS, /* another MAC, address, port or protocol, an option or extension header, a sender that cannot be one */
    NR_FRAME_BAD_LENGTH, /* lengths contradict each other or the frame */
    NR_FRAME_BAD_CHECKSUM, /* of the IPv4 header, UDP or ICMP; absent in UDP over IPv6 */
    NR_FRAME_FRAGMENT, /* of an IP packet */
};

/* What the port has verified of a frame: bits. */
enum {
    NR_FRAME_IP_VERIFIED = 1, /* the checksum of the IPv4 header, if it has one */
    NR_FRAME_UDP_VERIFIED = 2, /* the UDP checksum, if there is one */
};

/* How a datagram that is sent gets its UDP checksum. */
enum nr_frame_checksum {
    NR_FRAME_CHECKSUM_WHOLE, /* reckoned here, over headers and payload */
    NR_FRAME_CHECKSUM_PSEUDO, /* the sum of the pseudo-header alone: the port does the rest */
    NR_FRAME_CHECKSUM_NONE, /* zero over IPv4; whole over IPv6, where zero is not allowed */
};

/* The link-local IPv6 address of a MAC (modified EUI-64). */
void nr_frame_link_local(const uint8_t mac[6], uint8_t address[16]);

/*
 * Tells what the frame is. For a datagram fills *rx: data points into the frame, and the peer holds all that nr_frame_headers()
 * needs to answer it: the MAC that it came from right behind the address, and over IPv6 behind that a byte that says whether it came
 * to the link-local address.
 */
enum nr_frame nr_frame_parse(const struct nr_frame_host *host, const uint8_t *frame, uint32_t length, uint32_t verified,
                             struct nr_rx *rx);

/*
 * The answer to a frame that nr_frame_parse() took for `kind`: ARP, neighbour or ping. `out` has room for `length` and for
 * NR_FRAME_ANSWER bytes. Returns the answer's bytes.
 */
uint32_t nr_frame_answer(const struct nr_frame_host *host, enum nr_frame kind, const uint8_t *frame, uint32_t length, uint8_t *out);

/* Bytes of payload of a datagram to send: its own and its segments'. */
static inline uint32_t nr_frame_payload(const struct nr_tx *tx)
{
    uint32_t bytes = tx->length;

    for (uint32_t i = 0; i < tx->segments; i++)
        bytes += tx->segment[i].length;
    return bytes;
}

/*
 * Writes the headers of a datagram of `payload` bytes (nr_frame_payload) to the peer that it names and returns their bytes,
 * NR_FRAME_HEADERS_IP4 or NR_FRAME_HEADERS_IP6; 0 when the host has no address of the peer's family. Payload and headers fit into
 * 65,535 bytes. DF set, TTL 64, identification 0.
 */
uint32_t nr_frame_headers(const struct nr_frame_host *host, const struct nr_tx *tx, uint32_t payload,
                          enum nr_frame_checksum checksum, uint8_t *out);

#endif
