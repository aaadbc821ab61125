/* Connections: one thread, one epoll loop. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64, TIMER = -1 };

struct peer *peers;
int peer_count, publishing;
static int poller, timer, ready_count;
static int *ready_to_send;

_Noreturn void die(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(1);
}

uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- sending ---- */

/* What is in flight is a few kilobytes, below any socket buffer: a short write means a stuck server. */
void write_all(struct peer *peer, const char *data, size_t size) {
    ssize_t written = send(peer->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written != (ssize_t)size)
        die("the server stopped reading: %s", written < 0 ? strerror(errno) : "short write");
}

void allow(int index, int count) {
    struct peer *peer = &peers[index];
    peer->due += count;
    if (!peer->queued) ready_to_send[ready_count++] = index;
    peer->queued = 1;
}

/* The publisher's time in milliseconds and a number within it: no two messages have both. */
static void write_time(struct peer *peer) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    if (ms > peer->last_ms) {
        peer->last_ms = ms;
        peer->sequence = 0;
    }
    write_number(peer->text + peer->at_time, peer->last_ms, 13);
    write_number(peer->text + peer->at_time + 14, 1000 + peer->sequence++, 4);
}

/* Send the next message, each in a write of its own, as clients do; 0 if there are no more. */
int publish(struct peer *peer, uint64_t scheduled) {
    char out[MAX_SIZE + FRAME_ROOM];
    if (plan.prepared) {
        if (!fgets(peer->text, MAX_SIZE, plan.prepared)) return publishing = 0;
        peer->size = strcspn(peer->text, "\n");
    } else {
        write_number(peer->text + peer->at_number, FIRST_N + peer->sent, 10);
        if (peer->at_time) write_time(peer);
    }
    peer->sent_at[peer->sent++ % RING] = scheduled ? scheduled : now();
    total.sent++;
    total.expected += (uint64_t)peer->listeners;
    write_all(peer, out, peer->protocol->frame(peer, out, peer->text, peer->size));
    return 1;
}

/* Let all publishers send what they may; wake up for the first of those that have to wait. */
void send_due(void) {
    uint64_t earliest = UINT64_MAX;
    for (int i = ready_count; i--;) {
        struct peer *peer = &peers[ready_to_send[i]];
        for (; peer->due && publishing; peer->due--) {
            if (plan.gap && now() < peer->not_before) break;
            publish(peer, 0);
            peer->not_before = now() + plan.gap;
        }
        if (peer->due && publishing) {
            if (peer->not_before < earliest) earliest = peer->not_before;
        } else {
            peer->due = peer->queued = 0;
            ready_to_send[i] = ready_to_send[--ready_count];
        }
    }
    if (earliest != UINT64_MAX) wake_at(earliest);
}

/* ---- receiving ---- */

int hears(int subscriber, int publisher) {
    const struct peer *to = &peers[subscriber], *from = &peers[publisher];
    return to->role != PUBLISHER && from->role != LISTENER && to->topic == from->topic
           && (subscriber != publisher || to->protocol->echoes);
}

static void take_text(int to, struct message message, uint64_t arrived) {
    const char *end = message.text + message.size;
    int64_t n = number_after("\"n", message.text, end), p = number_after("\"p", message.text, end);
    uint64_t from = (uint64_t)p - FIRST_P, number = (uint64_t)n - FIRST_N;
    if (n < 0 || p < 0)
        peers[to].protocol->control(&peers[to], message);
    else if (from >= (uint64_t)peer_count || number >= peers[from].sent)
        die("nobody sent this: %.*s", (int)message.size, message.text);
    else
        take_delivery(to, (int)from, number, arrived);
}

static void take(int index, struct message message, uint64_t arrived) {
    struct peer *peer = &peers[index];
    char out[256];
    if (message.kind == TEXT)
        take_text(index, message, arrived);
    else if (message.kind == ANSWERED)
        take_answer(index, arrived);
    else if (message.kind == ASKED)
        write_all(peer, out, peer->protocol->reply(out, message));
    else if (message.kind == CLOSE)
        die("the server ended the connection: %.*s", (int)message.size, message.text);
}

static void take_all(int index, uint64_t arrived) {
    struct peer *peer = &peers[index];
    size_t at = 0;
    for (;;) {
        struct message message = peer->protocol->next(peer->buffer + at, peer->have - at);
        if (message.kind == INCOMPLETE) break;
        take(index, message, arrived);
        at += message.taken;
    }
    peer->have -= at;
    memmove(peer->buffer, peer->buffer + at, peer->have);
    if (peer->have == BUFFER) die("a message longer than %d bytes", BUFFER);
}

static void receive(int index) {
    struct peer *peer = &peers[index];
    char *fresh = peer->buffer + peer->have;
    ssize_t got = recv(peer->fd, fresh, BUFFER - peer->have, 0);
    if (got <= 0) die("the server closed a connection: %s", got ? strerror(errno) : "end of file");
    uint64_t arrived = now();
    peer->have += peer->protocol->unwrap ? peer->protocol->unwrap(peer, fresh, (size_t)got) : (size_t)got;
    take_all(index, arrived);
}

/* Take what has arrived, waiting for it (or for the timer) if need be; 0 after a silence of *patience_ms*. */
int pump(int patience_ms) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(poller, events, EVENTS, patience_ms);
    for (int i = 0; i < count; i++) {
        if (events[i].data.fd != TIMER) receive(events[i].data.fd);
        send_due();
    }
    return count;
}

void wake_at(uint64_t ns) {
    struct itimerspec at = {.it_value = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void open_poller(void) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = TIMER};
    poller = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event);
    prctl(PR_SET_TIMERSLACK, 1ul); /* ns: to wake up in time, and not up to 50 us later */
}

/* ---- connecting ---- */

/* Wait for *end*, which the first answer of a server has; the length of all before it, and of it. */
size_t read_head(struct peer *peer, const char *end) {
    const char *found = NULL;
    while (found == NULL) {
        ssize_t got = recv(peer->fd, peer->buffer + peer->have, BUFFER - 1 - peer->have, 0);
        if (got <= 0) die("no answer to the handshake");
        peer->have += (size_t)got;
        found = memmem(peer->buffer, peer->have, end, strlen(end));
    }
    return (size_t)(found - peer->buffer) + strlen(end);
}

static void open_peer(int index) {
    struct peer *peer = &peers[index];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)peer->port)};
    struct timeval patience = {SILENCE_MS / 1000, 0};
    struct epoll_event event = {.events = EPOLLIN, .data.fd = index};
    int on = 1;
    if (inet_pton(AF_INET, peer->host, &address.sin_addr) != 1) die("not an IPv4 address: %s", peer->host);
    peer->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(peer->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(peer->fd, (struct sockaddr *)&address, sizeof address))
        die("cannot connect: %s", strerror(errno));
    peer->protocol->greet(peer);
    epoll_ctl(poller, EPOLL_CTL_ADD, peer->fd, &event);
    take_all(index, now());
}

static void subscribe(struct peer *peer) {
    char out[512];
    if (!peer->protocol->subscribe) die("%s cannot listen here", peer->protocol->name);
    size_t size = peer->protocol->subscribe(peer, out);
    if (size) write_all(peer, out, size);
    while (!peer->subscribed)
        if (!pump(SILENCE_MS)) die("no answer to the subscription");
}

/* The message of *peer*, and where its number and its time are. */
static void write_message(struct peer *peer) {
    peer->size = peer->protocol->packet(peer, peer->text);
    char first[16];
    sprintf(first, "%llu", FIRST_N);
    peer->at_number = (size_t)((char *)memmem(peer->text, peer->size, first, 10) - peer->text);
    char *time = memmem(peer->text, peer->size, NO_TIME, 13);
    peer->at_time = time ? (size_t)(time - peer->text) : 0;
}

/* Whose receipt counts for a publisher: the next one before it, in a circle, that hears it. */
static int judge_of(int from) {
    for (int i = 1; i <= peer_count; i++) {
        int to = (from - i + peer_count) % peer_count;
        if (hears(to, from)) return to;
    }
    return -1;
}

void lay_out(void) {
    ready_to_send = calloc((size_t)peer_count, sizeof *ready_to_send);
    if (!ready_to_send) die("out of memory");
    lay_out_counts();
    for (int i = 0; i < peer_count; i++) {
        struct peer *peer = &peers[i];
        peer->partner = -1;
        peer->buffer = malloc(BUFFER);
        if (!peer->buffer) die("out of memory");
        for (int to = 0; to < peer_count; to++) peer->listeners += hears(to, i);
        peer->judge = judge_of(i);
        peer->next = peer->role == PAIR ? peer->judge : i;
        if (peer->role == LISTENER) continue;
        peer->listeners += peer->protocol->answers;
        if (!peer->protocol->packet) die("%s cannot publish here", peer->protocol->name);
        if (!peer->listeners) die("nobody listens to a publisher");
        peer->sent_at = calloc(RING, sizeof *peer->sent_at);
        if (!peer->sent_at) die("out of memory");
    }
}

void open_all(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    open_poller();
    for (int i = 0; i < peer_count; i++) {
        open_peer(i);
        if (peers[i].role != PUBLISHER) subscribe(&peers[i]);
    }
    for (int i = 0; i < peer_count; i++) {
        while (peers[i].role == PAIR && peers[i].partner < 0)
            if (!pump(SILENCE_MS)) die("no Hello came");
        if (peers[i].role != LISTENER) write_message(&peers[i]);
    }
}
