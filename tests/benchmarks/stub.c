#define _GNU_SOURCE
/* A stub of SGLang for benchmarks: answers /generate with a fixed number of output tokens, at once, from one thread.
 * For peers it answers /v1/chat/completions too, with the same tokens in the shape of vLLM's `return_token_ids`.
 *
 *   cc -O2 -o stub stub.c && ./stub PORT TOKENS
 *
 * Speaks HTTP/1.1 with keep-alive over epoll, only as much as the client's requests need. The answer's prompt_tokens is
 * the number of ids in the request, so that every check of the client passes. The last token is 2, a stop token.
 * A chat is answered as if its prompt had CHAT_PROMPT tokens, with ids 3, 4, 5 and so on.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_CONNECTIONS 8192
#define BUFFER (1 << 20)
#define CHAT_PROMPT 200

static char *buffers[MAX_CONNECTIONS];
static size_t filled[MAX_CONNECTIONS];
static char *answer_ids;
static size_t answer_length;
static char *chat_answer;
static size_t chat_length;
static int tokens;

static void make_answer(void) {
    answer_ids = malloc((size_t)tokens * 8 + 64);
    char *at = answer_ids;
    unsigned state = 12345;
    for (int token = 0; token < tokens - 1; token++) {
        state = state * 1103515245u + 12345u;
        at += sprintf(at, "%u,", 3 + (state >> 8) % 150000);
    }
    at += sprintf(at, "2");
    answer_length = (size_t)(at - answer_ids);
}

/* All of the chat's reply, made once: unlike /generate's, nothing in it depends on the request. */
static void make_chat_answer(void) {
    char *body = malloc(answer_length + (size_t)tokens * 4 + CHAT_PROMPT * 8 + 1024), *at = body;
    at += sprintf(at, "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1796114355,"
                      "\"model\":\"stub\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
    for (int token = 0; token < tokens; token++) at += sprintf(at, "the ");
    at += sprintf(at, "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],"
                      "\"reasoning\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,"
                      "\"token_ids\":[%s]}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{"
                      "\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":null},"
                      "\"prompt_logprobs\":null,\"kv_transfer_params\":null,\"prompt_token_ids\":[",
                  answer_ids, CHAT_PROMPT, CHAT_PROMPT + tokens, tokens);
    for (int token = 0; token < CHAT_PROMPT; token++) at += sprintf(at, token ? ",%d" : "%d", token + 3);
    at += sprintf(at, "]}");
    chat_answer = malloc((size_t)(at - body) + 128);
    chat_length = (size_t)sprintf(chat_answer,
                                  "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                                  (size_t)(at - body), body);
    free(body);
}

static void send_all(int file, const char *data, size_t length) {
    while (length) {
        ssize_t sent = send(file, data, length, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) continue;
            return;
        }
        data += sent;
        length -= (size_t)sent;
    }
}

static void reply(int file, const char *request, const char *body, size_t length) {
    static char *out;
    static size_t room;
    size_t wanted = answer_length + 1024;
    if (room < wanted) out = realloc(out, room = wanted);
    char text[768];
    int size;
    if (!strncmp(request, "POST /generate", 14)) {
        int count = 1;
        const char *end = memchr(body, ']', length);
        for (const char *at = body; end && at < end; at++) count += *at == ',';
        size = snprintf(text, sizeof text,
                        "],\"meta_info\":{\"id\":\"0123456789abcdef0123456789abcdef\",\"finish_reason\":{\"type\":\"stop\","
                        "\"matched\":2},\"prompt_tokens\":%d,\"weight_version\":\"default\",\"num_retractions\":0,"
                        "\"reasoning_tokens\":0,\"completion_tokens\":%d,\"cached_tokens\":0,\"weight_versions\":"
                        "[{\"version\":\"default\",\"start\":0,\"end\":%d}],\"cached_tokens_details\":null,"
                        "\"dp_rank\":null,\"e2e_latency\":0.7216241199998876,"
                        "\"response_sent_to_client_ts\":1796114355.70584}}",
                        count, tokens, tokens);
        size_t all = 15 + answer_length + (size_t)size;
        int head = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", all);
        memcpy(out + head, "{\"output_ids\":[", 15);
        memcpy(out + head + 15, answer_ids, answer_length);
        memcpy(out + head + 15 + answer_length, text, (size_t)size);
        send_all(file, out, (size_t)head + all);
        return;
    }
    if (!strncmp(request, "POST /v1/chat/completions", 25)) {
        send_all(file, chat_answer, chat_length);
        return;
    }
    const char *page = "{}";
    if (!strncmp(request, "GET /v1/models", 14)) page = "{\"data\":[{\"id\":\"stub\",\"max_model_len\":131072}]}";
    if (!strncmp(request, "GET /server_info", 16)) page = "{\"version\":\"stub\",\"max_req_input_len\":131066}";
    if (!strncmp(request, "GET /model_info", 15)) page = "{\"model_path\":\"stub\",\"weight_version\":\"default\"}";
    size = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                    strlen(page), page);
    send_all(file, text, (size_t)size);
}

static void serve(int file) {
    char *buffer = buffers[file];
    ssize_t got = recv(file, buffer + filled[file], BUFFER - filled[file] - 1, 0);
    if (got <= 0) {
        if (got < 0 && errno == EAGAIN) return;
        close(file);
        filled[file] = 0;
        return;
    }
    filled[file] += (size_t)got;
    for (;;) {
        buffer[filled[file]] = 0;
        char *end = strstr(buffer, "\r\n\r\n");
        if (!end) return;
        size_t length = 0, head = (size_t)(end - buffer) + 4;
        char *line = strcasestr(buffer, "content-length:");
        if (line && line < end) length = strtoul(line + 15, NULL, 10);
        if (filled[file] < head + length) return;
        reply(file, buffer, buffer + head, length);
        memmove(buffer, buffer + head + length, filled[file] - head - length);
        filled[file] -= head + length;
    }
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    tokens = atoi(arguments[2]);
    make_answer();
    make_chat_answer();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1]))};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&place, sizeof place) || listen(listener, 4096)) return 4;
    int poll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    socklen_t size = sizeof place;
    getsockname(listener, (struct sockaddr *)&place, &size);
    printf("%d\n", ntohs(place.sin_port));
    fflush(stdout);
    struct epoll_event events[256];
    for (;;) {
        int ready = epoll_wait(poll, events, 256, -1);
        for (int at = 0; at < ready; at++) {
            int file = events[at].data.fd;
            if (file != listener) {
                serve(file);
                continue;
            }
            while ((file = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (file >= MAX_CONNECTIONS) {
                    close(file);
                    continue;
                }
                if (!buffers[file]) buffers[file] = malloc(BUFFER);
                filled[file] = 0;
                setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                struct epoll_event fresh = {.events = EPOLLIN, .data.fd = file};
                epoll_ctl(poll, EPOLL_CTL_ADD, file, &fresh);
            }
        }
    }
}
