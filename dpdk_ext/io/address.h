/*
 * Kernel socket addresses: names resolved, and the way between sockaddr and nr_peer. Used by everything that opens
 * kernel sockets.
 */
#ifndef NR_IO_ADDRESS_H
#define NR_IO_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "packet_io.h"

/* An IPv4 or IPv6 socket address. */
union nr_address {
    struct sockaddr any;
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;
};

/* Most addresses of one name that are tried. */
#define NR_ADDRESSES 8

/*
 * Resolves a numeric address ("10.0.0.7", "::1", "fe80::1%eth0") or a host name for UDP, IPv4 addresses of a name
 * first, so that a server on 0.0.0.0 is found under "localhost". May ask DNS and so block. Returns how many were found
 * (1 to NR_ADDRESSES) or a negative errno: -ENOENT unknown name, -EAGAIN name service does not answer, -EINVAL no host
 * given, others from the system.
 */
int nr_address_resolve(const char *host, uint16_t port, union nr_address found[NR_ADDRESSES]);

/* Length in bytes of the sockaddr for its family. */
static inline socklen_t nr_address_length(const union nr_address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof(address->ip6) : sizeof(address->ip4);
}

/* The peer at a socket address. IPv4-mapped IPv6 addresses become IPv4 peers, so that a peer has one form on any
 * socket. */
void nr_address_to_peer(const union nr_address *address, struct nr_peer *peer);

/* The socket address of a peer, as a socket of the given family (AF_INET or AF_INET6) wants it. False where that cannot
 * be. */
bool nr_address_from_peer(const struct nr_peer *peer, int family, union nr_address *address);

/*
 * A close-on-exec, non-blocking UDP socket bound or connected to the address, with DF on what it sends, and never sharing a port.
 * One bound to "::" takes IPv4 too. Returns the descriptor or a negative errno.
 */
int nr_address_open(const union nr_address *address, bool connected);

/* The same for the first of the host's addresses that succeeds, which goes to *used. */
int nr_address_socket(const char *host, uint16_t port, bool connected, union nr_address *used);

/* Asks for socket buffers of this many bytes each, with privilege where it is had, and leaves what the kernel gives. */
void nr_address_buffers(int fd, int receive_bytes, int send_bytes);

#endif
