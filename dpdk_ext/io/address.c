#include "address.h"

#include <errno.h>
#include <netdb.h>
#include <unistd.h>

static int resolve_error(int code)
{
    switch (code) {
    case EAI_NONAME:
#ifdef EAI_NODATA
    case EAI_NODATA:
#endif
        return -ENOENT;
    case EAI_AGAIN:
        return -EAGAIN;
    case EAI_MEMORY:
        return -ENOMEM;
    case EAI_FAMILY:
        return -EAFNOSUPPORT;
    case EAI_SYSTEM:
        return errno != 0 ? -errno : -EIO;
    default:
        return -EIO;
    }
}

int nr_address_resolve(const char *host, uint16_t port, union nr_address found[NR_ADDRESSES])
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_family = AF_UNSPEC};
    struct addrinfo *list = NULL;
    int count = 0;

    if (host == NULL || *host == 0)
        return -EINVAL;
    int code = getaddrinfo(host, NULL, &hints, &list);
    if (code != 0)
        return resolve_error(code);

    static const int order[] = {AF_INET, AF_INET6};
    for (int family = 0; family < 2; family++) {
        for (struct addrinfo *entry = list; entry != NULL && count < NR_ADDRESSES; entry = entry->ai_next) {
            if (entry->ai_family != order[family] || entry->ai_addrlen > sizeof(found[0]))
                continue;
            memset(&found[count], 0, sizeof(found[count]));
            memcpy(&found[count], entry->ai_addr, entry->ai_addrlen);
            if (entry->ai_family == AF_INET)
                found[count].ip4.sin_port = htons(port);
            else
                found[count].ip6.sin6_port = htons(port);
            count++;
        }
    }
    freeaddrinfo(list);
    return count > 0 ? count : -ENOENT;
}

void nr_address_to_peer(const union nr_address *address, struct nr_peer *peer)
{
    memset(peer, 0, sizeof(*peer));
    if (address->any.sa_family == AF_INET) {
        peer->bytes[0] = 4;
        memcpy(peer->bytes + 2, &address->ip4.sin_port, 2);
        memcpy(peer->bytes + 4, &address->ip4.sin_addr, 4);
        peer->length = NR_PEER_LENGTH_IP4;
    } else if (address->any.sa_family == AF_INET6) {
        memcpy(peer->bytes + 2, &address->ip6.sin6_port, 2);
        if (IN6_IS_ADDR_V4MAPPED(&address->ip6.sin6_addr)) {
            peer->bytes[0] = 4;
            memcpy(peer->bytes + 4, address->ip6.sin6_addr.s6_addr + 12, 4);
            peer->length = NR_PEER_LENGTH_IP4;
        } else {
            uint32_t scope = address->ip6.sin6_scope_id;

            peer->bytes[0] = 6;
            memcpy(peer->bytes + 4, &address->ip6.sin6_addr, 16);
            memcpy(peer->bytes + 20, &scope, sizeof(scope));
            peer->length = NR_PEER_LENGTH_IP6;
        }
    }
}

bool nr_address_from_peer(const struct nr_peer *peer, int family, union nr_address *address)
{
    if (family == AF_INET && peer->bytes[0] == 4) {
        memset(&address->ip4, 0, sizeof(address->ip4));
        address->ip4.sin_family = AF_INET;
        memcpy(&address->ip4.sin_port, peer->bytes + 2, 2);
        memcpy(&address->ip4.sin_addr, peer->bytes + 4, 4);
        return true;
    }
    if (family != AF_INET6 || (peer->bytes[0] != 4 && peer->bytes[0] != 6))
        return false;
    memset(&address->ip6, 0, sizeof(address->ip6));
    address->ip6.sin6_family = AF_INET6;
    memcpy(&address->ip6.sin6_port, peer->bytes + 2, 2);
    if (peer->bytes[0] == 4) {
        address->ip6.sin6_addr.s6_addr[10] = 0xff;
        address->ip6.sin6_addr.s6_addr[11] = 0xff;
        memcpy(address->ip6.sin6_addr.s6_addr + 12, peer->bytes + 4, 4);
    } else {
        uint32_t scope;

        memcpy(&address->ip6.sin6_addr, peer->bytes + 4, 16);
        memcpy(&scope, peer->bytes + 20, sizeof(scope));
        address->ip6.sin6_scope_id = scope;
    }
    return true;
}

/* IP never fragments what this socket sends: what does not fit comes back as EMSGSIZE. */
static int forbid_fragments(int fd, int family)
{
    const int mode4 = IP_PMTUDISC_DO, mode6 = IPV6_PMTUDISC_DO;

    if (family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &mode6, sizeof(mode6)) < 0)
        return -errno;
    /* On an IPv6 socket this covers IPv4-mapped peers. */
    if (setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &mode4, sizeof(mode4)) < 0 && family == AF_INET)
        return -errno;
    return 0;
}

int nr_address_open(const union nr_address *address, bool connected)
{
    const int off = 0;
    int family = address->any.sa_family;
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP);

    if (fd < 0)
        return -errno;
    int error = forbid_fragments(fd, family);
    if (error == 0 && family == AF_INET6 && !connected && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) < 0)
        error = -errno;
    if (error == 0) {
        /* Without SO_REUSEADDR and SO_REUSEPORT, so that a port in use is EADDRINUSE. */
        int rc = connected ? connect(fd, &address->any, nr_address_length(address))
                           : bind(fd, &address->any, nr_address_length(address));
        if (rc < 0)
            error = -errno;
    }
    if (error == 0)
        return fd;
    close(fd);
    return error;
}

int nr_address_socket(const char *host, uint16_t port, bool connected, union nr_address *used)
{
    union nr_address found[NR_ADDRESSES];
    int count = nr_address_resolve(host, port, found);
    int first_error = 0;

    if (count < 0)
        return count;
    for (int i = 0; i < count; i++) {
        int fd = nr_address_open(&found[i], connected);

        if (fd >= 0) {
            *used = found[i];
            return fd;
        }
        if (first_error == 0)
            first_error = fd;
    }
    return first_error;
}

void nr_address_buffers(int fd, int receive_bytes, int send_bytes)
{
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive_bytes, sizeof(receive_bytes)) < 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &send_bytes, sizeof(send_bytes)) < 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes));
}
