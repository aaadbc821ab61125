/* The protocols: how each connects, subscribes, publishes, and what it hears. The table is at the end.
 *
 * Topics are called bench-0, bench-1 and so on, in every protocol. Content is {"n": number, "p": publisher,
 * "pad": dots}; on the topic relay these are fields of the packet itself.
 */
#include "load.h"

#include <strings.h>

static void refuse(struct message message) {
    die("unexpected: %.*s", (int)(message.size < 500 ? message.size : 500), message.text);
}

/* ---- content ---- */

/* The content in *size* bytes, begun by *head*, with *quote* for a quotation mark (which counts as one byte). */
static size_t write_content(char *out, const char *head, int index, const char *quote, size_t size) {
    const char *q = quote;
    size_t at = (size_t)sprintf(out, "%s%sn%s:%llu,%sp%s:%llu,%spad%s:%s", head, q, q, FIRST_N, q, q,
                                FIRST_P + (unsigned)index, q, q, q);
    size_t plain = at - 7 * (strlen(q) - 1) + 2;
    if (plain > size) die("size must be at least %zu", plain);
    memset(out + at, '.', size - plain);
    at += size - plain;
    return at + (size_t)sprintf(out + at, "%s}", q);
}

static size_t content(const struct peer *peer, char *out) {
    return write_content(out, "{", peer->index, "\"", plan.size);
}

/* ---- WebSocket ---- */

static const char UPGRADE[] =
    "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

static void request(struct peer *peer, const char *format, const char *path, const char *status) {
    char text[1024];
    int size = snprintf(text, sizeof text, format, path, peer->host, peer->port);
    if (size >= (int)sizeof text) die("the path is too long");
    write_all(peer, text, (size_t)size);
    size_t head = read_head(peer, "\r\n\r\n");
    if (strncmp(peer->buffer, status, strlen(status)))
        die("the handshake was refused: %.*s", (int)peer->have, peer->buffer);
    peer->have -= head;
    memmove(peer->buffer, peer->buffer + head, peer->have);
}

static void upgrade(struct peer *peer) { request(peer, UPGRADE, peer->path, "HTTP/1.1 101"); }

static size_t text_frame(const struct peer *peer, char *out, const char *text, size_t size) {
    (void)peer;
    return ws_frame(out, 1, text, size);
}

static size_t pong(char *out, struct message ping) { return ws_frame(out, 10, ping.text, ping.size); }

/* ---- the topic relay: packets of JSON ---- */

static size_t relay_subscribe(const struct peer *peer, char *out) {
    char text[128];
    return ws_frame(out, 1, text, (size_t)sprintf(text, "{\"type\":2,\"topic\":\"bench-%d\"}", peer->topic));
}

static size_t relay_packet(const struct peer *peer, char *out) {
    char head[128], to[32] = "";
    int direct = peer->role == PAIR;
    if (direct) sprintf(to, "\"dst\":%ld,", peer->partner);
    sprintf(head, "{\"type\":%d,\"topic\":\"bench-%d\",%s", direct ? 4 : 6, peer->topic, to);
    return write_content(out, head, peer->index, "\"", plan.size);
}

/* The answer to Subscribe, or another peer's Hello; anything else ends the run. */
static void relay_control(struct peer *peer, struct message message) {
    const char *end = message.text + message.size;
    int64_t type = number_after("\"type", message.text, end);
    if ((type != 2 && type != 7) || memmem(message.text, message.size, "\"error\"", 7)) refuse(message);
    if (type == 2) peer->subscribed = 1;
    int64_t id = number_after(type == 2 ? "\"peers" : "\"src", message.text, end);
    if (id >= 0) peer->partner = id;
}

/* ---- Streamr: arrays of JSON, with the content as a string; unsigned, each publisher with a chain of its own ---- */

static size_t streamr_subscribe(const struct peer *peer, char *out) {
    char text[128];
    return ws_frame(out, 1, text, (size_t)sprintf(text, "[2,9,\"s\",\"bench-%d\",0,null]", peer->topic));
}

static size_t streamr_packet(const struct peer *peer, char *out) {
    static const char HEAD[] = "[2,8,\"r\",[32,[\"bench-%d\",0," NO_TIME ",1000,\"\",\"p%d\"],null,27,0,0,null,\"";
    size_t at = (size_t)sprintf(out, HEAD, peer->topic, peer->index);
    at += write_content(out + at, "{", peer->index, "\\\"", plan.size);
    return at + (size_t)sprintf(out + at, "\",null,0,null],null]");
}

static void streamr_control(struct peer *peer, struct message message) {
    if (message.size < 5 || strncmp(message.text, "[2,2,", 5)) refuse(message);
    peer->subscribed = 1;
}

/* ---- Sprout: lines; it only listens here, because nodes have to be signed ---- */

static void no_greeting(struct peer *peer) { (void)peer; }

static size_t sprout_subscribe(const struct peer *peer, char *out) {
    (void)peer;
    return (size_t)sprintf(out, "subscribe 1 %s\n", plan.community);
}

static struct message sprout_next(const char *data, size_t size) {
    static char node[1 << 16];
    struct message line = lines_until(data, size, "\n");
    if (line.kind == INCOMPLETE) return line;
    const char *space = memchr(line.text, ' ', line.size);
    if (!strncmp(line.text, "announce ", 9)) {
        line.kind = ASKED;
    } else if (!strncmp(line.text, "SHA512_B32__", 12) && space != NULL) {
        size_t length = line.size - (size_t)(space + 1 - line.text);
        if (length > sizeof node) die("a node of %zu bytes", length);
        line.size = base64url(node, space + 1, length);
        line.text = node;
    }
    return line;
}

static size_t sprout_status(char *out, struct message announce) {
    return (size_t)sprintf(out, "status %lu 0\n", strtoul(announce.text + 9, NULL, 10));
}

/* A status, or a node that is no message: an author's identity, what the messages of a day stand below. */
static void sprout_control(struct peer *peer, struct message message) {
    if (message.size < 7 || strncmp(message.text, "status ", 7)) return;
    if (strncmp(message.text, "status 1 0", 10)) refuse(message);
    peer->subscribed = 1;
}

/* ---- REST: server-sent events, and a message in each request ---- */

static const char EVENTS[] = "GET %s HTTP/1.1\r\nHost: %s:%d\r\nAccept: text/event-stream\r\n\r\n";

static void events_greet(struct peer *peer) {
    char path[64];
    sprintf(path, "/v1/channels/bench-%d/events", peer->topic);
    request(peer, EVENTS, path, "HTTP/1.1 200");
    peer->have = unchunk(peer, peer->buffer, peer->have);
}

static size_t events_subscribe(const struct peer *peer, char *out) {
    (void)peer, (void)out; /* the request was that */
    return 0;
}

static struct message events_next(const char *data, size_t size) { return lines_until(data, size, "\n\n"); }

static void events_control(struct peer *peer, struct message message) {
    if (memmem(message.text, message.size, "event: welcome", 14)) peer->subscribed = 1;
}

static size_t rest_frame(const struct peer *peer, char *out, const char *text, size_t size) {
    size_t at = (size_t)sprintf(out,
                                "POST /v1/channels/bench-%d/messages HTTP/1.1\r\nHost: %s:%d\r\n"
                                "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                                peer->topic, peer->host, peer->port, size);
    memcpy(out + at, text, size);
    return at + size;
}

static struct message rest_next(const char *data, size_t size) {
    struct message answer = lines_until(data, size, "\r\n\r\n");
    if (answer.kind == INCOMPLETE) return answer;
    char head[2048];
    snprintf(head, sizeof head, "%.*s", (int)answer.size, answer.text);
    const char *length = strcasestr(head, "content-length:");
    answer.taken += length ? strtoul(length + 15, NULL, 10) : 0;
    answer.kind = !strncmp(head, "HTTP/1.1 201", 12) ? ANSWERED : CLOSE;
    if (answer.taken > size) answer.kind = INCOMPLETE;
    return answer;
}

/* ---- NATS: lines, and texts with their length before them ---- */

static void nats_greet(struct peer *peer) {
    static const char CONNECT[] = "CONNECT {\"verbose\":false,\"echo\":false}\r\n"; /* the sender hears nothing */
    write_all(peer, CONNECT, sizeof CONNECT - 1);
    size_t head = read_head(peer, "\r\n");
    peer->have -= head;
    memmove(peer->buffer, peer->buffer + head, peer->have);
}

static size_t nats_subscribe(const struct peer *peer, char *out) {
    return (size_t)sprintf(out, "SUB bench-%d 1\r\nPING\r\n", peer->topic);
}

static size_t nats_frame(const struct peer *peer, char *out, const char *text, size_t size) {
    size_t at = (size_t)sprintf(out, "PUB bench-%d %zu\r\n", peer->topic, size);
    memcpy(out + at, text, size);
    memcpy(out + at + size, "\r\n", 2);
    return at + size + 2;
}

static struct message nats_next(const char *data, size_t size) {
    struct message found = lines_until(data, size, "\n");
    if (found.kind == INCOMPLETE) return found;
    found.kind = NOISE;
    if (!strncmp(data, "MSG ", 4)) {
        const char *digits = memrchr(data, ' ', found.size); /* MSG subject sid size */
        struct message text = {TEXT, data + found.size, strtoul(digits, NULL, 10), 0};
        text.taken = found.size + text.size + 2;
        if (text.taken > size) text.kind = INCOMPLETE;
        return text;
    }
    if (!strncmp(data, "PING", 4)) found.kind = ASKED;
    if (!strncmp(data, "PONG", 4)) found.kind = TEXT; /* ours, after SUB: the answer to a subscription */
    if (!strncmp(data, "-ERR", 4)) found.kind = CLOSE;
    return found;
}

static size_t nats_pong(char *out, struct message ping) {
    (void)ping;
    return (size_t)sprintf(out, "PONG\r\n");
}

static void nats_control(struct peer *peer, struct message message) {
    if (strncmp(message.text, "PONG", 4)) refuse(message);
    peer->subscribed = 1;
}

/* ---- the table ---- */

const struct protocol PROTOCOLS[] = {
    {.name = "relay", .greet = upgrade, .subscribe = relay_subscribe, .packet = relay_packet, .frame = text_frame,
     .next = ws_next, .reply = pong, .control = relay_control},
    {.name = "streamr", .echoes = 1, .greet = upgrade, .subscribe = streamr_subscribe, .packet = streamr_packet,
     .frame = text_frame, .next = ws_next, .reply = pong, .control = streamr_control},
    {.name = "sprout", .greet = no_greeting, .subscribe = sprout_subscribe, .next = sprout_next,
     .reply = sprout_status, .control = sprout_control},
    {.name = "events", .greet = events_greet, .subscribe = events_subscribe, .unwrap = unchunk,
     .next = events_next, .control = events_control},
    {.name = "rest", .answers = 1, .greet = no_greeting, .packet = content, .frame = rest_frame, .next = rest_next},
    {.name = "nats", .greet = nats_greet, .subscribe = nats_subscribe, .packet = content, .frame = nats_frame,
     .next = nats_next, .reply = nats_pong, .control = nats_control},
    {.name = NULL},
};

const struct protocol *protocol_named(const char *name) {
    const struct protocol *protocol = PROTOCOLS;
    while (protocol->name && strcmp(protocol->name, name)) protocol++;
    if (!protocol->name) die("no protocol is called %s", name);
    return protocol;
}
