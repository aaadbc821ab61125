/* How bytes become messages and back: RFC 6455 frames as a client sends them, chunks of HTTP, base64url, numbers in
 * texts. Nothing here does I/O.
 */
#include "load.h"

/* RFC 6455 section 5.1: a client masks every frame with a key that cannot be foreseen. */
static uint32_t new_mask(void) {
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

size_t ws_frame(char *out, int opcode, const char *text, size_t size) {
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
struct message ws_next(const char *data, size_t size) {
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
        for (start = 2, length = 0; start < 10; start++) length = length << 8 | head[start];
    }
    if (size - start < length) return none;
    struct message found = {NOISE, data + start, length, start + length};
    switch (head[0]) {
    case 0x81: case 0x82: found.kind = TEXT; break;
    case 0x89: found.kind = ASKED; break;
    case 0x8a: break;
    default: found.kind = CLOSE;
    }
    return found;
}

/* The text before *end*, which belongs to it. */
struct message lines_until(const char *data, size_t size, const char *end) {
    struct message none = {INCOMPLETE, NULL, 0, 0};
    const char *found = memmem(data, size, end, strlen(end));
    if (found == NULL) return none;
    size_t length = (size_t)(found - data) + strlen(end);
    return (struct message){TEXT, data, length, length};
}

/* RFC 9112 section 7.1: take the headers of chunks out of *data*, in place; the bytes that remain. */
size_t unchunk(struct peer *peer, char *data, size_t size) {
    size_t kept = 0, at = 0;
    while (at < size) {
        if (peer->chunk_left) {
            size_t some = size - at < peer->chunk_left ? size - at : peer->chunk_left;
            memmove(data + kept, data + at, some);
            kept += some;
            at += some;
            peer->chunk_left -= some;
            continue;
        }
        char digit = data[at++];
        if (digit == '\n' && peer->chunk_digits) { /* the line break behind a chunk has no digits */
            if (peer->chunk_size == 0) die("the server ended the stream of events");
            peer->chunk_left = peer->chunk_size;
            peer->chunk_size = 0;
            peer->chunk_digits = 0;
        } else if (digit != '\r' && digit != '\n') {
            int value = digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10;
            if (value < 0 || value > 15) die("no header of a chunk: %d", digit);
            peer->chunk_size = peer->chunk_size * 16 + (size_t)value;
            peer->chunk_digits++;
        }
    }
    return kept;
}

/* RFC 4648 section 5, without padding; what was decoded before anything else came. */
size_t base64url(char *out, const char *text, size_t size) {
    static signed char values[256];
    static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    if (!values['B']) {
        memset(values, -1, sizeof values);
        for (int i = 0; i < 64; i++) values[(unsigned char)ALPHABET[i]] = (signed char)i;
    }
    uint32_t bits = 0;
    size_t made = 0;
    int have = 0;
    for (size_t i = 0; i < size; i++) {
        int value = values[(unsigned char)text[i]];
        if (value < 0) break;
        bits = bits << 6 | (uint32_t)value;
        if ((have += 6) >= 8) out[made++] = (char)(bits >> (have -= 8));
    }
    return made;
}

void write_number(char *out, uint64_t number, int digits) {
    while (digits--) {
        out[digits] = (char)('0' + number % 10);
        number /= 10;
    }
}

/* The number behind *key* (a quotation mark and a name) in JSON, or in JSON inside a JSON string; -1 if none. */
int64_t number_after(const char *key, const char *text, const char *end) {
    size_t length = strlen(key);
    for (const char *at = text; (at = memmem(at, (size_t)(end - at), key, length)); at++) {
        const char *digit = at + length;
        if (digit < end && *digit == '\\') digit++;
        if (end - digit < 3 || digit[0] != '"' || digit[1] != ':') continue;
        for (digit += 2; digit < end && (*digit == ' ' || *digit == '['); digit++) {}
        if (digit == end || *digit < '0' || *digit > '9') continue;
        int64_t number = 0;
        while (digit < end && *digit >= '0' && *digit <= '9') number = number * 10 + (*digit++ - '0');
        return number;
    }
    return -1;
}
