/* Load for a server of messages: many peers on raw sockets, one thread, one epoll loop.
 *
 *     load NAME=VALUE ...
 *
 * group=ROLE:COUNT:PROTOCOL:HOST:PORT:PATH
 *          COUNT peers on each topic, all connected to one server; several groups are given one by one. ROLE is
 *          publisher, listener, member (it does both) or pair (two a topic, direct messages go to and fro).
 *          PROTOCOL is one of protocols.c; PATH is of a WebSocket.
 * topics   how many there are (1)
 * window   messages a publisher keeps in flight (1)
 * rhythm   when a message is in flight no longer, and the publisher sends another, each in a write of its own:
 *          judge: when it has arrived at one certain subscriber, which is looked at read by read, so that a
 *          window that went out together comes back together; first: as soon as it has arrived at any subscriber,
 *          before anything else that came in is looked at; answer: when the server has answered it;
 *          schedule: never, messages are sent at set times, whatever comes back
 * gap      microseconds that a publisher takes for a message before it sends another (0)
 * rate     with a schedule: messages a second, of all publishers together
 * size     of a message's content, in bytes (on the topic relay: of the packet)
 * community, prepared
 *          the channel's id in Arbor; a file with the messages to publish, one on each line
 * warmup, seconds
 *          how long to publish, before measuring and then
 *
 * Connects, subscribes, warms up, prints {"event": "ready"}; begins when a line comes on standard input,
 * prints the result as one line of JSON, and stays connected until standard input ends. Every message has a
 * number (n) and its publisher (p), so each arrival is counted, timed, and checked. On a schedule the time is
 * from when the message should have been sent, so what a slow server delays is not left out.
 */
#include "load.h"

#include <time.h>

struct plan plan = {.topics = 1, .window = 1, .size = 100};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- what was asked for ---- */

static int index_of(const char *const *names, const char *name) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], name)) return i;
    die("no such thing: %s", name);
}

/* Each group on each topic: the peers of a topic stand beside each other. */
static void add_group(const char *text) {
    static const char *const ROLES[] = {"publisher", "listener", "member", "pair", NULL};
    char role[16], protocol[16], host[64], path[256] = "/";
    int count, port;
    if (sscanf(text, "%15[^:]:%d:%15[^:]:%63[^:]:%d:%255s", role, &count, protocol, host, &port, path) < 5)
        die("no group: %s", text);
    int more = count * plan.topics;
    if (more < 1 || peer_count + more > 89999) die("there are 1 to 89999 peers");
    peers = realloc(peers, (size_t)(peer_count + more) * sizeof *peers);
    if (!peers) die("out of memory");
    memset(peers + peer_count, 0, (size_t)more * sizeof *peers);
    for (int i = 0; i < more; i++) {
        struct peer *peer = &peers[peer_count + i];
        peer->protocol = protocol_named(protocol);
        peer->role = (enum role)index_of(ROLES, role);
        peer->port = port;
        peer->index = peer_count + i;
        peer->topic = i / count;
        strcpy(peer->host, host);
        strcpy(peer->path, path);
    }
    peer_count += more;
}

static void read_plan(int count, char **argv) {
    static const char *const RHYTHMS[] = {"judge", "first", "answer", "schedule", NULL};
    for (int i = 1; i < count; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) die("no NAME=VALUE: %s", argv[i]);
        *value++ = 0;
        const char *name = argv[i];
        if (!strcmp(name, "group")) add_group(value);
        else if (!strcmp(name, "topics")) plan.topics = atoi(value);
        else if (!strcmp(name, "window")) plan.window = atoi(value);
        else if (!strcmp(name, "rhythm")) plan.rhythm = (enum rhythm)index_of(RHYTHMS, value);
        else if (!strcmp(name, "rate")) plan.rate = atof(value);
        else if (!strcmp(name, "gap")) plan.gap = strtoul(value, NULL, 10) * 1000;
        else if (!strcmp(name, "size")) plan.size = strtoul(value, NULL, 10);
        else if (!strcmp(name, "community")) plan.community = value;
        else if (!strcmp(name, "prepared")) plan.prepared = fopen(value, "r");
        else if (!strcmp(name, "warmup")) plan.warmup = atof(value);
        else if (!strcmp(name, "seconds")) plan.seconds = atof(value);
        else die("no such thing: %s", name);
        if (!strcmp(name, "prepared") && !plan.prepared) die("cannot read %s", value);
    }
    if (!peer_count) die("a group is needed");
    if (plan.window < 1 || plan.window > MAX_WINDOW) die("window is 1 to %d", MAX_WINDOW);
    if (plan.size > MAX_SIZE / 2) die("size is up to %d", MAX_SIZE / 2);
    if (plan.rhythm == SCHEDULE && plan.rate <= 0) die("a schedule needs a rate");
}

/* ---- publishing at set times ---- */

static struct { uint64_t start, sent; int publisher; } schedule;

static uint64_t due_at(void) { return schedule.start + (uint64_t)((double)schedule.sent * 1e9 / plan.rate); }

/* Send everything that should have been sent by now, publisher by publisher, and wake up for the next. What was due
 * before the end is sent after it as well: a generator that was late must not leave out what a server would delay. */
static void keep_schedule(uint64_t end) {
    uint64_t due;
    while (publishing && (due = due_at()) <= now() && due < end) {
        do schedule.publisher = (schedule.publisher + 1) % peer_count;
        while (peers[schedule.publisher].role == LISTENER);
        note(&delays, now() - due);
        publish(&peers[schedule.publisher], due);
        schedule.sent++;
    }
    if (due_at() >= end) publishing = 0;
    wake_at(due_at());
}

/* ---- a run ---- */

static void run_for(double seconds) {
    memset(&latencies, 0, sizeof latencies);
    memset(&delays, 0, sizeof delays);
    uint64_t end = now() + (uint64_t)(seconds * 1e9);
    publishing = 1;
    if (plan.rhythm == SCHEDULE) {
        schedule.start = now();
        schedule.sent = 0;
    } else {
        for (int i = 0; i < peer_count; i++) {
            int begins = peers[i].role != LISTENER && (peers[i].role != PAIR || peers[i].judge > i);
            if (begins) allow(i, plan.window);
        }
        send_due();
    }
    for (;;) {
        if (plan.rhythm != SCHEDULE && now() >= end) publishing = 0;
        if (plan.rhythm == SCHEDULE && publishing) keep_schedule(end);
        if (!publishing && total.deliveries + total.lost >= total.expected) break;
        if (!pump(SILENCE_MS)) break;
    }
    publishing = 0;
    while (pump(SETTLE_MS)) {}
}

/* Run, and print what came of it. The time ends with the last delivery. */
static void measure(void) {
    uint64_t start = now(), sent = total.sent, deliveries = total.deliveries;
    double cpu = cpu_seconds();
    run_for(plan.seconds);
    printf("{\"sent\": %lu, \"items\": %lu, \"lost\": %lu, \"repeated\": %lu, \"stray\": %lu, ", total.sent - sent,
           total.deliveries - deliveries, total.lost + never_arrived(), total.repeated, total.stray);
    printf("\"seconds\": %.6f, \"load_cpu_seconds\": %.6f, ", (double)(int64_t)(total.last_delivery - start) / 1e9,
           cpu_seconds() - cpu);
    printf("\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"delay_us\": %.1f}\n",
           percentile_us(&latencies, 0.50), percentile_us(&latencies, 0.99), percentile_us(&latencies, 0.999),
           percentile_us(&delays, 0.99));
    fflush(stdout);
}

int main(int argc, char **argv) {
    read_plan(argc, argv);
    lay_out();
    open_all();
    if (plan.warmup > 0) run_for(plan.warmup);
    puts("{\"event\": \"ready\"}");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    measure();
    while (getchar() != EOF) {}
    return 0;
}
