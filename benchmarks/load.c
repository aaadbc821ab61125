/* Load for a topic relay: many peers on raw sockets, one thread, one epoll loop.
 *
 *     load WIRE HOST PORT PATH SHAPE PEERS TOPICS WINDOW SIZE WARMUP SECONDS
 *
 * WIRE    ws (topic relay packets on WebSocket) or nats (PATH is not used)
 * SHAPE   fan: one publisher, itself no subscriber, to PEERS subscribers
 *         mesh: PEERS peers on TOPICS topics, each subscribes and publishes
 *         pairs: PEERS / 2 pairs, each on its own topic; direct messages go to and fro
 * WINDOW  messages a publisher keeps in flight. One subscriber is its judge: what has arrived there is no
 *         longer in flight, and the publisher sends as many again, each in a write of its own, as clients do.
 * SIZE    of a packet's text, in bytes; WARMUP and SECONDS are durations.
 *
 * Connects, subscribes, warms up, prints {"event": "ready"}; begins when a line comes on standard input,
 * prints the result as one line of JSON, and stays connected until standard input ends. Every message has a
 * number (n), the time it was sent (t, in ns) and its publisher (p), so each arrival is counted, timed, and
 * checked: each subscriber must get each number of each publisher of its topic once, in order.
 */
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, MAX_SIZE = 8192, MAX_WINDOW = 256, EVENTS = 64 };
enum { SILENCE_MS = 5000, SETTLE_MS = 100 }; /* nothing more will come; nothing came that should not */

/* Numbers in packets start here, so that all have the same width; all are exact in a double. */
static const uint64_t FIRST_N = 1000000000ull, FIRST_T = 1000000000000000ull, FIRST_P = 1000;

enum shape { FAN, MESH, PAIRS };

struct peer {
    int fd, topic, listens, subscribed;
    long partner;        /* pairs: the id that the server gave the other one; -1 until known */
    int judge, next;     /* whose receipt counts for this publisher, and who sends then */
    int listeners;       /* how many get what it publishes */
    uint64_t sent;
    int due, queued;     /* messages it may send now; whether it stands in the list of those who may */
    char text[MAX_SIZE]; /* its packet; n and t are overwritten in place */
    size_t at_n, at_t;
    char buffer[BUFFER];
    size_t have;
};

static struct {
    int nats;
    const char *host, *path;
    int port;
    enum shape shape;
    int subscribers, topics, window;
    size_t size;
} plan;

static struct peer *peers;
static int peer_count, poller, publishing;
static int *ready_to_send, ready_count;
static uint64_t *seen; /* [subscriber * peer_count + publisher]: the number expected next */

static struct { /* since the start, warm-up included: a fault in the warm-up is a fault */
    uint64_t sent, expected, deliveries, lost, repeated, stray, last_delivery;
} total;

static uint64_t histogram[64 * 32]; /* of the latencies of one run: 32 steps to each power of two */

static void die(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t now(void) {
    static uint64_t start;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    if (start == 0) start = ns;
    return ns - start;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- latencies ---- */

static void note_latency(uint64_t ns) {
    if (ns < 32) ns = 32;
    int power = 63 - __builtin_clzll(ns);
    histogram[power * 32 + (int)(ns >> (power - 5) & 31)]++;
}

/* The latency which *share* of *deliveries* do not exceed, 3 % too low at most. */
static double percentile_us(double share, uint64_t deliveries) {
    uint64_t count = 0, wanted = (uint64_t)(share * (double)deliveries);
    for (int i = 0; i < 64 * 32; i++)
        if ((count += histogram[i]) > wanted) return (double)((32ull + i % 32) << (i / 32 - 5)) / 1e3;
    return 0;
}

/* ---- sending ---- */

/* What is in flight is a few kilobytes, below any socket buffer: a short write means a stuck server. */
static void write_all(struct peer *peer, const char *data, size_t size) {
    ssize_t written = send(peer->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written != (ssize_t)size)
        die("the server stopped reading: %s", written < 0 ? strerror(errno) : "short write");
}

static size_t frame(const struct peer *peer, char *out, const char *text, size_t size) {
    char subject[16];
    if (!plan.nats) return ws_frame(out, 1, text, size);
    sprintf(subject, "bench-%d", peer->topic);
    return nats_frame(out, subject, text, size);
}

static void allow(int index, int count) {
    struct peer *peer = &peers[index];
    peer->due += count;
    if (!peer->queued) ready_to_send[ready_count++] = index;
    peer->queued = 1;
}

static void publish(struct peer *peer) {
    char out[MAX_SIZE + FRAME_ROOM];
    write_number(peer->text + peer->at_t, FIRST_T + now(), 16);
    write_number(peer->text + peer->at_n, FIRST_N + peer->sent++, 10);
    total.sent++;
    total.expected += (uint64_t)peer->listeners;
    write_all(peer, out, frame(peer, out, peer->text, plan.size));
}

static void send_due(void) {
    while (ready_count) {
        struct peer *peer = &peers[ready_to_send[--ready_count]];
        peer->queued = 0;
        for (; peer->due && publishing; peer->due--) publish(peer);
        peer->due = 0;
    }
}

/* ---- receiving ---- */

static int hears(int subscriber, int publisher) {
    const struct peer *to = &peers[subscriber];
    return to->listens && subscriber != publisher && to->topic == peers[publisher].topic;
}

static void take_delivery(int to, int from, uint64_t number, uint64_t sent_at, uint64_t arrived) {
    uint64_t *expected = &seen[to * peer_count + from];
    if (!hears(to, from)) {
        total.stray++;
    } else if (number < *expected) {
        total.repeated++;
    } else {
        total.lost += number - *expected;
        *expected = number + 1;
        total.deliveries++;
        total.last_delivery = arrived;
        note_latency(arrived - sent_at);
        if (to == peers[from].judge) allow(peers[from].next, 1);
    }
}

/* What is no delivery: the answer to Subscribe, or another peer's Hello; anything else ends the run. */
static void take_control(struct peer *peer, const char *text, const char *end) {
    const char *at = text;
    int64_t type = plan.nats && !strncmp(text, "PONG", 4) ? 2 : number_after("\"type\":", &at, end);
    if ((type != 2 && type != 7) || memmem(text, (size_t)(end - text), "\"error\"", 7))
        die("unexpected: %.*s", (int)(end - text), text);
    if (type == 2) peer->subscribed = 1;
    int64_t id = number_after(type == 2 ? "\"peers\":[" : "\"src\":", &at, end);
    if (id >= 0) peer->partner = id;
}

static void take_text(int to, const char *text, size_t size, uint64_t arrived) {
    const char *at = text, *end = text + size;
    int64_t n = number_after("\"n\":", &at, end);
    int64_t t = number_after("\"t\":", &at, end);
    int64_t p = number_after("\"p\":", &at, end);
    uint64_t from = (uint64_t)p - FIRST_P, number = (uint64_t)n - FIRST_N;
    if (n < 0 || t < 0 || p < 0)
        take_control(&peers[to], text, end);
    else if (size < plan.size || from >= (uint64_t)peer_count || number >= peers[from].sent)
        die("nobody sent this: %.*s", (int)size, text);
    else
        take_delivery(to, (int)from, number, (uint64_t)t - FIRST_T, arrived);
}

static void take(int index, struct message message, uint64_t arrived) {
    struct peer *peer = &peers[index];
    char pong[256];
    if (message.kind == TEXT)
        take_text(index, message.text, message.size, arrived);
    else if (message.kind == CLOSE)
        die("the server ended the connection: %.*s", (int)message.size, message.text);
    else if (message.kind == PING && plan.nats)
        write_all(peer, "PONG\r\n", 6);
    else if (message.kind == PING)
        write_all(peer, pong, ws_frame(pong, 10, message.text, message.size));
}

static void receive(int index) {
    struct peer *peer = &peers[index];
    ssize_t got = recv(peer->fd, peer->buffer + peer->have, BUFFER - peer->have, 0);
    if (got <= 0) die("the server closed a connection: %s", got ? strerror(errno) : "end of file");
    uint64_t arrived = now();
    peer->have += (size_t)got;
    size_t at = 0;
    for (;;) {
        struct message message = (plan.nats ? nats_next : ws_next)(peer->buffer + at, peer->have - at);
        if (message.kind == INCOMPLETE) break;
        take(index, message, arrived);
        at += message.taken;
    }
    peer->have -= at;
    memmove(peer->buffer, peer->buffer + at, peer->have);
    if (peer->have == BUFFER) die("a message longer than %d bytes", BUFFER);
}

/* Take what has arrived, waiting for it if need be; 0 after a silence of *patience_ms*. */
static int pump(int patience_ms) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(poller, events, EVENTS, patience_ms);
    for (int i = 0; i < count; i++) {
        receive((int)events[i].data.u32);
        send_due();
    }
    return count;
}

/* ---- connecting ---- */

static const char UPGRADE[] =
    "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
static const char CONNECT[] = "CONNECT {\"verbose\":false,\"echo\":false}\r\n"; /* the sender hears nothing */

static void handshake(struct peer *peer) {
    char request[1024];
    const char *end = plan.nats ? "\r\n" : "\r\n\r\n", *found = NULL;
    int size = plan.nats ? sprintf(request, CONNECT)
                         : snprintf(request, sizeof request, UPGRADE, plan.path, plan.host, plan.port);
    if (size >= (int)sizeof request) die("PATH is too long");
    write_all(peer, request, (size_t)size);
    while (found == NULL) {
        ssize_t got = recv(peer->fd, peer->buffer + peer->have, BUFFER - 1 - peer->have, 0);
        if (got <= 0) die("no answer to the handshake");
        peer->have += (size_t)got;
        found = memmem(peer->buffer, peer->have, end, strlen(end));
    }
    if (!plan.nats && strncmp(peer->buffer, "HTTP/1.1 101", 12))
        die("the handshake was refused: %.*s", (int)peer->have, peer->buffer);
    size_t taken = (size_t)(found - peer->buffer) + strlen(end);
    peer->have -= taken;
    memmove(peer->buffer, peer->buffer + taken, peer->have);
}

static void open_peer(int index) {
    struct peer *peer = &peers[index];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)plan.port)};
    struct timeval patience = {SILENCE_MS / 1000, 0};
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
    int on = 1;
    if (inet_pton(AF_INET, plan.host, &address.sin_addr) != 1) die("not an IPv4 address: %s", plan.host);
    peer->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(peer->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(peer->fd, (struct sockaddr *)&address, sizeof address))
        die("cannot connect: %s", strerror(errno));
    handshake(peer);
    epoll_ctl(poller, EPOLL_CTL_ADD, peer->fd, &event);
}

static void subscribe(struct peer *peer) {
    char text[128], out[256];
    const char *format = plan.nats ? "SUB bench-%d 1\r\nPING\r\n" : "{\"type\":2,\"topic\":\"bench-%d\"}";
    int size = sprintf(text, format, peer->topic);
    if (plan.nats)
        write_all(peer, text, (size_t)size);
    else
        write_all(peer, out, ws_frame(out, 1, text, (size_t)size));
    while (!peer->subscribed)
        if (!pump(SILENCE_MS)) die("no answer to Subscribe");
}

static const char PACKET[] = "{\"type\":%d,\"topic\":\"bench-%d\",%s\"n\":%lu,\"t\":%lu,\"p\":%lu,\"pad\":\"";

/* The peer's packet, filled up with dots to the wanted size. */
static void write_packet(int index) {
    struct peer *peer = &peers[index];
    char to[32] = "";
    if (plan.shape == PAIRS) sprintf(to, "\"dst\":%ld,", peer->partner);
    size_t size = (size_t)sprintf(peer->text, PACKET, plan.shape == PAIRS ? 4 : 6, peer->topic, to,
                                  FIRST_N, FIRST_T, FIRST_P + index);
    if (size + 2 > plan.size) die("SIZE must be at least %zu", size + 2);
    memset(peer->text + size, '.', plan.size - size - 2);
    memcpy(peer->text + plan.size - 2, "\"}", 2);
    peer->at_n = (size_t)(strstr(peer->text, "\"n\":") - peer->text) + 4;
    peer->at_t = (size_t)(strstr(peer->text, "\"t\":") - peer->text) + 4;
}

static void lay_out(void) {
    peer_count = plan.subscribers + (plan.shape == FAN);
    peers = calloc((size_t)peer_count, sizeof *peers);
    seen = calloc((size_t)peer_count * (size_t)peer_count, sizeof *seen);
    ready_to_send = calloc((size_t)peer_count, sizeof *ready_to_send);
    if (!peers || !seen || !ready_to_send) die("out of memory");
    for (int i = 0; i < peer_count; i++) {
        struct peer *peer = &peers[i];
        int neighbour = plan.shape == PAIRS ? i ^ 1 : (i + plan.topics) % plan.subscribers;
        peer->partner = -1;
        peer->topic = plan.shape == PAIRS ? i / 2 : i % plan.topics;
        peer->listens = i < plan.subscribers;
        peer->judge = plan.shape == FAN ? plan.subscribers - 1 : neighbour;
        peer->next = plan.shape == PAIRS ? neighbour : i;
    }
    for (int from = 0; from < peer_count; from++)
        for (int to = 0; to < peer_count; to++) peers[from].listeners += hears(to, from);
}

static void open_all(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    poller = epoll_create1(0);
    for (int i = 0; i < peer_count; i++) {
        open_peer(i);
        if (peers[i].listens) subscribe(&peers[i]);
    }
    for (int i = 0; i < peer_count; i++) {
        while (plan.shape == PAIRS && peers[i].partner < 0)
            if (!pump(SILENCE_MS)) die("no Hello came");
        write_packet(i);
    }
}

/* ---- a run ---- */

static void run_for(double seconds) {
    memset(histogram, 0, sizeof histogram);
    uint64_t end = now() + (uint64_t)(seconds * 1e9);
    publishing = 1;
    for (int i = 0; i < peer_count; i++) {
        int begins = plan.shape == MESH || (plan.shape == FAN ? !peers[i].listens : i % 2 == 0);
        if (begins) allow(i, plan.window);
    }
    send_due();
    while ((publishing || total.deliveries + total.lost < total.expected) && pump(SILENCE_MS))
        if (now() >= end) publishing = 0;
    publishing = 0;
    while (pump(SETTLE_MS)) {}
}

static uint64_t never_arrived(void) {
    uint64_t count = 0;
    for (int to = 0; to < peer_count; to++)
        for (int from = 0; from < peer_count; from++)
            if (hears(to, from)) count += peers[from].sent - seen[to * peer_count + from];
    return count;
}

/* Run, and print what came of it. The time ends with the last delivery. */
static void measure(double seconds) {
    uint64_t start = now(), sent = total.sent, deliveries = total.deliveries;
    double cpu = cpu_seconds();
    run_for(seconds);
    deliveries = total.deliveries - deliveries;
    printf("{\"sent\": %lu, \"deliveries\": %lu, \"lost\": %lu, \"repeated\": %lu, \"stray\": %lu, ",
           total.sent - sent, deliveries, total.lost + never_arrived(), total.repeated, total.stray);
    printf("\"seconds\": %.6f, \"load_cpu_seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
           (double)(int64_t)(total.last_delivery - start) / 1e9, cpu_seconds() - cpu,
           percentile_us(0.50, deliveries), percentile_us(0.99, deliveries));
    fflush(stdout);
}

static void read_plan(char **argv) {
    plan.nats = !strcmp(argv[1], "nats");
    plan.host = argv[2];
    plan.port = atoi(argv[3]);
    plan.path = argv[4];
    plan.shape = !strcmp(argv[5], "fan") ? FAN : !strcmp(argv[5], "mesh") ? MESH : PAIRS;
    plan.subscribers = atoi(argv[6]);
    plan.topics = atoi(argv[7]);
    plan.window = atoi(argv[8]);
    plan.size = strtoul(argv[9], NULL, 10);
    int on_each = plan.topics < 1 ? 0 : plan.subscribers / plan.topics;
    if (plan.subscribers < 1 || plan.subscribers > 8999) die("PEERS is 1 to 8999");
    if (plan.window < 1 || plan.window > MAX_WINDOW) die("WINDOW is 1 to %d", MAX_WINDOW);
    if (plan.size > MAX_SIZE) die("SIZE is up to %d", MAX_SIZE);
    if (on_each * plan.topics != plan.subscribers) die("PEERS must be a multiple of TOPICS");
    if (plan.shape == FAN && plan.topics != 1) die("fan has one topic");
    if (plan.shape == MESH && on_each < 2) die("mesh needs two peers on each topic");
    if (plan.shape == PAIRS && on_each != 2) die("pairs needs two peers for each topic");
    if (plan.nats && plan.shape == PAIRS) die("nats has no direct messages");
}

int main(int argc, char **argv) {
    if (argc != 12) die("usage: load WIRE HOST PORT PATH SHAPE PEERS TOPICS WINDOW SIZE WARMUP SECONDS");
    read_plan(argv);
    lay_out();
    open_all();
    run_for(atof(argv[10]));
    puts("{\"event\": \"ready\"}");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    measure(atof(argv[11]));
    while (getchar() != EOF) {}
    return 0;
}
