/* What arrived: each subscriber must get each number of each publisher of its topic once, in order. */
#include "load.h"

struct totals total;
struct histogram latencies, delays;
static uint64_t *seen; /* [subscriber * peer_count + publisher]: the number expected next */

void note(struct histogram *histogram, uint64_t ns) {
    if (ns < 32) ns = 32;
    int power = 63 - __builtin_clzll(ns);
    histogram->count[power * 32 + (int)(ns >> (power - 5) & 31)]++;
}

/* The value which *share* of all noted ones do not exceed, 3 % too low at most. */
double percentile_us(const struct histogram *histogram, double share) {
    uint64_t all = 0, count = 0;
    for (int i = 0; i < 64 * 32; i++) all += histogram->count[i];
    uint64_t wanted = (uint64_t)(share * (double)all);
    for (int i = 0; i < 64 * 32; i++)
        if ((count += histogram->count[i]) > wanted) return (double)((32ull + i % 32) << (i / 32 - 5)) / 1e3;
    return 0;
}

void lay_out_counts(void) {
    seen = calloc((size_t)peer_count * (size_t)peer_count, sizeof *seen);
    if (!seen) die("out of memory");
}

/* What is in flight no longer, by number, lets the same peer send again, or of a pair the other one. */
static void take_back(struct peer *publisher, uint64_t upto) {
    if (upto <= publisher->returned) return;
    int count = (int)(upto - publisher->returned);
    publisher->returned = upto;
    allow(publisher->next, count);
    if (plan.rhythm == FIRST) send_due(); /* at once, before what else arrived is looked at */
}

static void count_delivery(struct peer *from, uint64_t number, uint64_t arrived) {
    if (from->sent - number > RING) die("a subscriber is more than %d messages behind", RING);
    total.deliveries++;
    total.last_delivery = arrived;
    note(&latencies, arrived - from->sent_at[number % RING]);
}

void take_delivery(int to, int index, uint64_t number, uint64_t arrived) {
    uint64_t *expected = &seen[to * peer_count + index];
    struct peer *from = &peers[index];
    if (!hears(to, index)) {
        total.stray++;
    } else if (number < *expected) {
        total.repeated++;
    } else {
        total.lost += number - *expected;
        *expected = number + 1;
        count_delivery(from, number, arrived);
        if (plan.rhythm == FIRST || (plan.rhythm == JUDGE && to == from->judge)) take_back(from, number + 1);
    }
}

/* A request was answered; a connection has its answers in order. */
void take_answer(int index, uint64_t arrived) {
    struct peer *peer = &peers[index];
    if (peer->answered == peer->sent) die("an answer to nothing");
    count_delivery(peer, peer->answered++, arrived);
    if (plan.rhythm == ANSWER) take_back(peer, peer->answered);
}

uint64_t never_arrived(void) {
    uint64_t count = 0;
    for (int from = 0; from < peer_count; from++) {
        if (peers[from].protocol->answers) count += peers[from].sent - peers[from].answered;
        for (int to = 0; to < peer_count; to++)
            if (hears(to, from)) count += peers[from].sent - seen[to * peer_count + from];
    }
    return count;
}
