/* What the parts of the load generator know of each other. main.c says how it is used.
 *
 * A peer is one connection. What differs from protocol to protocol is in a table (protocols.c), so counting,
 * timing and the rhythm of publishing (peers.c, main.c) are the same for all of them.
 */
#ifndef LOAD_H
#define LOAD_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 1 << 18, MAX_SIZE = 8192, FRAME_ROOM = 512, MAX_WINDOW = 256 };
enum { RING = 1 << 14 };       /* messages of one publisher whose times are kept */
enum { SILENCE_MS = 5000, SETTLE_MS = 100 }; /* nothing more will come; nothing came that should not */

/* Numbers in messages start here, so that all have the same width. */
#define FIRST_N 1000000000ull
#define FIRST_P 10000ull
#define NO_TIME "9999999999999" /* stands for a publisher's time, in milliseconds */

enum role { PUBLISHER, LISTENER, MEMBER, PAIR };   /* a member listens and publishes, a pair sends to and fro */
enum rhythm { JUDGE, FIRST, ANSWER, SCHEDULE };
enum kind { INCOMPLETE, TEXT, ANSWERED, ASKED, CLOSE, NOISE };

struct message { /* the next one in a stream of bytes */
    enum kind kind;
    const char *text;
    size_t size, taken; /* *taken* counts the framing as well */
};

struct peer;

struct protocol {
    const char *name;
    int echoes;                               /* whether a publisher that listens hears itself */
    int answers;                              /* whether each message is answered, which counts as an arrival */
    void (*greet)(struct peer *);             /* what comes before everything else; waits for the answer */
    size_t (*subscribe)(const struct peer *, char *out);
    size_t (*packet)(const struct peer *, char *out); /* the text of a message, without framing */
    size_t (*frame)(const struct peer *, char *out, const char *text, size_t size);
    size_t (*unwrap)(struct peer *, char *data, size_t size); /* takes chunk headers out of what arrived, or NULL */
    struct message (*next)(const char *data, size_t size);
    size_t (*reply)(char *out, struct message);   /* to what was ASKED */
    void (*control)(struct peer *, struct message); /* a TEXT that is no delivery */
};

struct peer {
    const struct protocol *protocol;
    char host[64], path[256];
    enum role role;
    int port, fd, index, topic, subscribed;
    int judge, next, listeners; /* whose receipt counts; who sends then; how many arrivals a message has */
    long partner;               /* of a pair: the number that the server gave the other one, or -1 */
    uint64_t sent, answered;
    uint64_t returned;          /* numbers below it are no longer in flight */
    int due, queued;            /* messages it may send; whether it stands in the list of those who may */
    uint64_t not_before;        /* when it may send the next one, in ns */
    uint64_t *sent_at;          /* [number % RING], in ns */
    char text[MAX_SIZE];        /* its message; the number and the time are overwritten in place */
    size_t size, at_number, at_time;
    uint64_t last_ms, sequence;
    size_t chunk_left, chunk_size;
    int chunk_digits;
    size_t have;
    char *buffer;               /* BUFFER bytes, of which *have* are not taken yet */
};

struct plan {
    enum rhythm rhythm;
    int topics, window;
    double rate, warmup, seconds; /* messages a second of all publishers together, if on a schedule */
    uint64_t gap;                 /* ns between two messages of a publisher */
    size_t size;
    const char *community;        /* the channel's id in Arbor */
    FILE *prepared;               /* messages that were made before, one on each line */
};

extern struct plan plan;
extern struct peer *peers;
extern int peer_count, publishing;

extern struct totals { /* since the start, warm-up included: a fault in the warm-up is a fault */
    uint64_t sent, expected, deliveries, lost, repeated, stray, last_delivery;
} total;

struct histogram { uint64_t count[64 * 32]; }; /* 32 steps to each power of two */
extern struct histogram latencies, delays;     /* of arrivals; of sending what was scheduled */

/* peers.c */
_Noreturn void die(const char *format, ...);
uint64_t now(void);
void write_all(struct peer *peer, const char *data, size_t size);
size_t read_head(struct peer *peer, const char *end);
void lay_out(void);
void open_all(void);
void allow(int index, int count);
int publish(struct peer *peer, uint64_t scheduled);
void send_due(void);
int pump(int patience_ms);
void wake_at(uint64_t ns);
int hears(int subscriber, int publisher);

/* counts.c */
void note(struct histogram *histogram, uint64_t ns);
double percentile_us(const struct histogram *histogram, double share);
void lay_out_counts(void);
void take_delivery(int to, int from, uint64_t number, uint64_t arrived);
void take_answer(int index, uint64_t arrived);
uint64_t never_arrived(void);

/* protocols.c, wire.c */
extern const struct protocol PROTOCOLS[];
const struct protocol *protocol_named(const char *name);
size_t ws_frame(char *out, int opcode, const char *text, size_t size);
struct message ws_next(const char *data, size_t size);
struct message lines_until(const char *data, size_t size, const char *end);
size_t unchunk(struct peer *peer, char *data, size_t size);
size_t base64url(char *out, const char *text, size_t size);
void write_number(char *out, uint64_t number, int digits);
int64_t number_after(const char *key, const char *text, const char *end);

#endif
