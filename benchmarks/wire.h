/* How a message travels: RFC 6455 frames as a client sends them, the NATS client protocol, numbers in texts.
 *
 * Nothing here does I/O. `*_frame` writes one outgoing message, `*_next` finds the next incoming one.
 */
#ifndef WIRE_H
#define WIRE_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME_ROOM = 64 }; /* what framing adds at most: a header and a mask, or a PUB line */

enum kind { INCOMPLETE, TEXT, PING, CLOSE, NOISE };

struct message {
    enum kind kind;
    const char *text;
    size_t size;
    size_t taken; /* bytes of the stream, framing included */
};

/* RFC 6455 section 5.1: a client masks every frame with a key that cannot be foreseen. */
static uint32_t new_mask(void) {
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static size_t ws_frame(char *out, int opcode, const char *text, size_t size) {
    size_t at = 0;
    out[at++] = (char)(0x80 | opcode);
    if (size < 126) {
        out[at++] = (char)(0x80 | size);
    } else {
        out[at++] = (char)(0x80 | 126);
        out[at++] = (char)(size >> 8);
        out[at++] = (char)size;
    }
    uint32_t mask = new_mask();
    memcpy(out + at, &mask, 4);
    const char *key = out + at;
    at += 4;
    for (size_t i = 0; i < size; i++) out[at + i] = text[i] ^ key[i & 3];
    return at + size;
}

/* Servers do not mask. A fragmented message is not put together: kind CLOSE, and the caller gives up. */
static struct message ws_next(const char *data, size_t size) {
    struct message none = {INCOMPLETE, NULL, 0, 0};
    if (size < 2) return none;
    const unsigned char *head = (const unsigned char *)data;
    size_t start = 2, length = head[1] & 127;
    if (length == 126) {
        if (size < 4) return none;
        length = (size_t)head[2] << 8 | head[3];
        start = 4;
    } else if (length == 127) {
        if (size < 10) return none;
        for (length = 0; start < 10; start++) length = length << 8 | head[start];
    }
    if (size - start < length) return none;
    struct message found = {NOISE, data + start, length, start + length};
    switch (head[0]) {
    case 0x81: case 0x82: found.kind = TEXT; break;
    case 0x89: found.kind = PING; break;
    case 0x8a: break;
    default: found.kind = CLOSE;
    }
    return found;
}

static size_t nats_frame(char *out, const char *subject, const char *text, size_t size) {
    size_t at = (size_t)sprintf(out, "PUB %s %zu\r\n", subject, size);
    memcpy(out + at, text, size);
    memcpy(out + at + size, "\r\n", 2);
    return at + size + 2;
}

static struct message nats_next(const char *data, size_t size) {
    struct message none = {INCOMPLETE, NULL, 0, 0};
    const char *end = memchr(data, '\n', size);
    if (end == NULL) return none;
    size_t line = (size_t)(end - data) + 1;
    struct message found = {NOISE, data, line, line};
    if (!strncmp(data, "MSG ", 4)) {
        const char *digits = memrchr(data, ' ', line); /* MSG subject sid size */
        found = (struct message){TEXT, end + 1, strtoul(digits, NULL, 10), 0};
        found.taken = line + found.size + 2;
        return found.taken <= size ? found : none;
    }
    if (!strncmp(data, "PING", 4)) found.kind = PING;
    if (!strncmp(data, "PONG", 4)) found.kind = TEXT; /* ours, after SUB: the answer to a subscription */
    if (!strncmp(data, "-ERR", 4)) found.kind = CLOSE;
    return found;
}

/* ---- numbers in the text of a packet ---- */

static void write_number(char *out, uint64_t number, int digits) {
    while (digits--) {
        out[digits] = (char)('0' + number % 10);
        number /= 10;
    }
}

/* The number after *key* in the text from *at* on; -1 if there is none. *at* moves behind it. */
static int64_t number_after(const char *key, const char **at, const char *end) {
    size_t length = strlen(key);
    const char *found = memmem(*at, (size_t)(end - *at), key, length);
    if (found == NULL) return -1;
    found += length;
    while (found < end && *found == ' ') found++;
    if (found == end || *found < '0' || *found > '9') return -1;
    int64_t number = 0;
    while (found < end && *found >= '0' && *found <= '9') number = number * 10 + (*found++ - '0');
    *at = found;
    return number;
}

#endif
