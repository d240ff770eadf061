#include "packet_io.h"

#include <arpa/inet.h>

static char *append_number(char *at, uint32_t value)
{
    char digits[10];
    int count = 0;

    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

uint16_t nr_peer_port(const struct nr_peer *peer)
{
    return (uint16_t)(peer->bytes[2] << 8 | peer->bytes[3]);
}

const char *nr_peer_format(const struct nr_peer *peer, char text[NR_PEER_TEXT])
{
    char *at = text;

    if (peer->bytes[0] == 4) {
        inet_ntop(AF_INET, peer->bytes + 4, at, INET_ADDRSTRLEN);
        at += strlen(at);
    } else if (peer->bytes[0] == 6) {
        uint32_t scope;

        *at++ = '[';
        inet_ntop(AF_INET6, peer->bytes + 4, at, INET6_ADDRSTRLEN);
        at += strlen(at);
        memcpy(&scope, peer->bytes + 20, sizeof(scope));
        if (scope != 0) {
            *at++ = '%';
            at = append_number(at, scope);
        }
        *at++ = ']';
    } else if (peer->bytes[0] == NR_PEER_LOCAL) {
        memcpy(at, "vhost", 5);
        at += 5;
    } else {
        *at++ = '-';
        *at = 0;
        return text;
    }
    *at++ = ':';
    at = append_number(at, nr_peer_port(peer));
    *at = 0;
    return text;
}
