/* epoll_client - the least that a client of the paced server can cost: one thread, one epoll, recv(), a clock reading, bytes kept.
 *
 *   gcc -O2 -o epoll_client epoll_client.c
 *   ./epoll_client PORT STREAMS TOKENS [chrt-priority [core]]
 *
 * Opens STREAMS connections to 127.0.0.1:PORT, sends one request on each at the same instant, stamps every read with CLOCK_MONOTONIC and
 * keeps the bytes. When all streams have ended it cuts the events and prints one JSON object: reads, processor time of the load in seconds,
 * and in nanoseconds `span_ns` (the server's times from the first to the last chunk) and the lists `delays` (stamp of a chunk - the server's
 * own time in its text) and `ttft_errors` (our first chunk - our send, less the server's first token - its reading of the request).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int fd, ended;
    int64_t sent;
    char *bytes; size_t used, room;
    int64_t *stamps; size_t *ends; size_t reads, reads_room;
} stream_t;

static int64_t clock_ns(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *grown(void *old, size_t size) {
    void *new = realloc(old, size);
    if (!new) fail("realloc");
    return new;
}

/* One read. The stream has ended when its last bytes are the last chunk's. */
static void take(stream_t *s) {
    if (s->room - s->used < 65536) s->bytes = grown(s->bytes, s->room = s->room * 2 + 131072);
    ssize_t n = recv(s->fd, s->bytes + s->used, 65536, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) fail("a stream was cut");
    if (s->reads == s->reads_room) {
        s->reads_room = s->reads_room * 2 + 256;
        s->stamps = grown(s->stamps, s->reads_room * sizeof *s->stamps);
        s->ends = grown(s->ends, s->reads_room * sizeof *s->ends);
    }
    s->stamps[s->reads] = clock_ns(CLOCK_MONOTONIC);
    s->used += n;
    s->ends[s->reads++] = s->used;
    s->ended = s->used >= 5 && !memcmp(s->bytes + s->used - 5, "0\r\n\r\n", 5);
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: epoll_client PORT STREAMS TOKENS [PRIORITY [CORE]]\n"), 2;
    int port = atoi(argv[1]), streams = atoi(argv[2]), tokens = atoi(argv[3]);
    if (argc > 5) {
        cpu_set_t core;
        CPU_ZERO(&core);
        CPU_SET(atoi(argv[5]), &core);
        if (sched_setaffinity(0, sizeof core, &core)) fail("sched_setaffinity");
    }
    if (argc > 4 && atoi(argv[4])) {
        struct sched_param priority = {.sched_priority = atoi(argv[4])};
        if (sched_setscheduler(0, SCHED_FIFO, &priority)) fail("sched_setscheduler");
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    char body[1024], request[2048], words[201];
    memset(words, 'x', 200);
    words[200] = 0;
    int length = snprintf(body, sizeof body, "{\"model\":\"paced\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":%d,"
                          "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", tokens, words);
    length = snprintf(request, sizeof request, "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                      "content-length: %d\r\n\r\n%s", port, length, body);
    stream_t *all = calloc(streams, sizeof *all);
    int ep = epoll_create1(0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < streams; i++) {
        int on = 1;
        if ((all[i].fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(all[i].fd, (void *)&to, sizeof to)) fail("connect");
        setsockopt(all[i].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event event = {EPOLLIN, {.ptr = &all[i]}};
        epoll_ctl(ep, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    usleep(100000);
    int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < streams; i++) {
        all[i].sent = clock_ns(CLOCK_MONOTONIC);
        if (send(all[i].fd, request, length, MSG_NOSIGNAL) != length) fail("send");
    }
    struct epoll_event ready[512];
    for (int left = streams; left;) {
        int n = epoll_wait(ep, ready, 512, -1);
        for (int i = 0; i < n; i++) {
            stream_t *s = ready[i].data.ptr;
            if (s->ended) continue;
            take(s);
            left -= s->ended;
        }
    }
    /* cutting the events is part of the work that is counted */
    size_t chunks = 0, reads = 0, room = 0;
    int64_t begin = INT64_MAX, end_of_all = 0, *delays = NULL, *errors = malloc(streams * sizeof *errors);
    for (int i = 0; i < streams; i++) {
        stream_t *s = &all[i];
        size_t at_read = 0;
        int first = 1;
        char *end = s->bytes + s->used;
        for (char *at = s->bytes; (at = memmem(at, end - at, "data: {\"id\":\"chatcmpl-", 22));) {
            char *stop = memmem(at, end - at, "\n\n", 2);
            if (!stop) break;
            char *text = memmem(at, stop - at, "\"content\":\" ", 12);
            if (text) {
                while ((size_t)(stop + 1 - s->bytes) >= s->ends[at_read]) at_read++;
                int64_t truth = strtoll(text + 12, NULL, 16), arrival = strtoll(at + 22, NULL, 16);
                if (chunks == room) delays = grown(delays, (room = room * 2 + 4096) * sizeof *delays);
                delays[chunks++] = s->stamps[at_read] - truth;
                if (truth < begin) begin = truth;
                if (truth > end_of_all) end_of_all = truth;
                if (first) errors[i] = (s->stamps[at_read] - s->sent) - (truth - arrival);
                first = 0;
            }
            at = stop;
        }
        if (first) return fprintf(stderr, "a stream held no token\n"), 1;
        reads += s->reads;
    }
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"cpu_s\":%.6f,\"reads\":%zu,\"span_ns\":%lld,\"delays\":[", cpu / 1e9, reads, (long long)(end_of_all - begin));
    for (size_t i = 0; i < chunks; i++) printf("%s%lld", i ? "," : "", (long long)delays[i]);
    printf("],\"ttft_errors\":[");
    for (int i = 0; i < streams; i++) printf("%s%lld", i ? "," : "", (long long)errors[i]);
    printf("]}\n");
    return 0;
}
