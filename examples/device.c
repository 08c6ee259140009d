/* A device of docs/wire.md: rows of numbers from standard input, the high-cost model's answers out.
 *
 *   cc -std=c99 -O2 device.c -lmosquitto -o device
 *   echo 0.1 2 3.5 | ./device localhost 1883 pi-1 digits 1
 *
 * For each row it prints the class index and the probabilities; "error CODE" for a refusal; "fallback"
 * where no answer comes in time: what a stage on the device says then. */
#define _POSIX_C_SOURCE 200809L
#include <mosquitto.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEADLINE_MS = 5000, RETRY_MS = 1000, MOST_COLUMNS = 16384, ROOM = 131072 };

static uint8_t message[ROOM], answer[ROOM]; /* the request, and the response to it */
static size_t message_size, answer_size;
static uint8_t id[16];

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(2);
}

static uint32_t crc32(const uint8_t *bytes, size_t n)
{
    uint32_t crc = 0xffffffff;
    while (n--) {
        int bit;
        crc ^= *bytes++;
        for (bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

/* -- CBOR: writing ------------------------------------------------------------------------- */

static void put(const void *bytes, size_t n)
{
    if (message_size + n > ROOM)
        fail("the request is too large");
    memcpy(message + message_size, bytes, n);
    message_size += n;
}

static void put_head(unsigned kind, uint32_t number) /* of an item: its major type and its number */
{
    uint8_t head[5] = {(uint8_t)(kind << 5 | 26), (uint8_t)(number >> 24), (uint8_t)(number >> 16),
                       (uint8_t)(number >> 8), (uint8_t)number};
    put(head, 5); /* five bytes for any number: any length of a head will do */
}

static void put_text(const char *text)
{
    put_head(3, (uint32_t)strlen(text));
    put(text, strlen(text));
}

static void put_number(const char *key, uint32_t number)
{
    put_text(key);
    put_head(0, number);
}

static void write_request(const char *model, const char *version, const float *row, uint32_t k)
{
    uint32_t i, crc;
    message_size = 0;
    put_head(5, 9); /* a map of 9 entries */
    put_number("v", 1);
    put_text("id"), put_head(2, 16), put(id, 16);
    put_text("m"), put_text(model);
    put_text("mv"), put_text(version);
    put_number("ttl", DEADLINE_MS);
    put_number("n", 1);
    put_number("k", k);
    put_text("x"), put_head(6, 85), put_head(2, 4 * k);
    for (i = 0; i < k; i++) {
        uint32_t bits;
        uint8_t little[4];
        memcpy(&bits, row + i, 4);
        little[0] = (uint8_t)bits, little[1] = (uint8_t)(bits >> 8);
        little[2] = (uint8_t)(bits >> 16), little[3] = (uint8_t)(bits >> 24);
        put(little, 4);
    }
    put_text("crc");
    put_head(2, 4);
    crc = crc32(message, message_size);
    {
        uint8_t big[4] = {(uint8_t)(crc >> 24), (uint8_t)(crc >> 16), (uint8_t)(crc >> 8), (uint8_t)crc};
        put(big, 4);
    }
}

/* -- CBOR: reading ------------------------------------------------------------------------- */

typedef struct {
    unsigned kind; /* major type: 0 number, 2 bytes, 3 text */
    uint64_t number;
    const uint8_t *bytes; /* of bytes and texts, `number` of them */
} item_type;

static const uint8_t *at, *end;

static int read_item(item_type *item)
{
    unsigned more, low;
    do { /* a tag says what its item is; its place in the message does, too */
        if (at >= end)
            return 0;
        item->kind = *at >> 5;
        low = *at++ & 31;
        more = low < 24 ? 0 : low < 28 ? 1u << (low - 24) : 99;
        if (more > (size_t)(end - at))
            return 0;
        for (item->number = more ? 0 : low; more; more--)
            item->number = item->number << 8 | *at++;
    } while (item->kind == 6);
    item->bytes = at;
    if (item->kind == 2 || item->kind == 3) {
        if (item->number > (uint64_t)(end - at))
            return 0;
        at += item->number;
    }
    return item->kind == 0 || item->kind == 2 || item->kind == 3;
}

static int find(const uint8_t *payload, size_t size, const char *wanted, item_type *value)
{
    unsigned entries;
    at = payload, end = payload + size;
    if (size < 1 || *at >> 5 != 5)
        return 0;
    entries = *at++ & 31;
    if (entries == 24 && at < end)
        entries = *at++;
    else if (entries > 23)
        return 0;
    for (; entries; entries--) {
        item_type key;
        if (!read_item(&key) || key.kind != 3 || !read_item(value))
            return 0;
        if (key.number == strlen(wanted) && !memcmp(key.bytes, wanted, key.number))
            return 1;
    }
    return 0;
}

/* 1: the answer to the request that is out; 0: not it, or a refusal that may be followed by one. */
static int is_final(const uint8_t *payload, size_t size)
{
    item_type found;
    const uint8_t *last = payload + size - 4;
    if (size < 4 || (((uint32_t)last[0] << 24) | (uint32_t)last[1] << 16 | (uint32_t)last[2] << 8 | last[3])
                        != crc32(payload, size - 4))
        return 0;
    if (!find(payload, size, "id", &found) || found.number != 16 || memcmp(found.bytes, id, 16))
        return 0;
    if (find(payload, size, "e", &found))
        return !(found.number == 4 && !memcmp(found.bytes, "busy", 4)) &&
               !(found.number == 8 && !memcmp(found.bytes, "no-model", 8));
    return 1;
}

static void print_answer(void)
{
    item_type labels, shares;
    uint64_t c;
    if (find(answer, answer_size, "e", &labels)) {
        printf("error %.*s\n", (int)labels.number, (const char *)labels.bytes);
        return;
    }
    if (!find(answer, answer_size, "y", &labels) || labels.number != 2 ||
        !find(answer, answer_size, "p", &shares))
        fail("a response without an answer");
    printf("%d", labels.bytes[0] | labels.bytes[1] << 8);
    for (c = 0; c + 4 <= shares.number; c += 4) {
        const uint8_t *b = shares.bytes + c;
        uint32_t bits = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        float share;
        memcpy(&share, &bits, 4);
        printf(" %.9g", (double)share);
    }
    putchar('\n');
}

/* -- MQTT ---------------------------------------------------------------------------------- */

static void on_message(struct mosquitto *client, void *unused, const struct mosquitto_message *got)
{
    (void)client, (void)unused;
    if (!answer_size && got->payloadlen > 0 && got->payloadlen <= ROOM &&
        is_final(got->payload, (size_t)got->payloadlen)) {
        answer_size = (size_t)got->payloadlen;
        memcpy(answer, got->payload, answer_size);
    }
}

static int subscribed;

static void on_subscribe(struct mosquitto *client, void *unused, int mid, int n, const int *granted)
{
    (void)client, (void)unused, (void)mid;
    subscribed = n == 1 && granted[0] < 128 ? 1 : -1;
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

int main(int argc, char **argv)
{
    static char line[64 * MOST_COLUMNS], requests[128], responses[128], name[128];
    static float row[MOST_COLUMNS];
    struct mosquitto *client;
    FILE *source = fopen("/dev/urandom", "rb");
    if (argc != 6 || !source)
        fail("usage: device HOST PORT DEVICE MODEL VERSION");
    snprintf(requests, sizeof requests, "gw/v1/%s/req", argv[3]);
    snprintf(responses, sizeof responses, "gw/v1/%s/rsp", argv[3]);
    snprintf(name, sizeof name, "gw-%s", argv[3]);
    mosquitto_lib_init();
    client = mosquitto_new(name, true, NULL);
    mosquitto_int_option(client, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V311);
    mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1); /* else a request takes 40 ms more */
    mosquitto_message_callback_set(client, on_message);
    mosquitto_subscribe_callback_set(client, on_subscribe);
    if (mosquitto_connect(client, argv[1], atoi(argv[2]), 10) ||
        mosquitto_subscribe(client, NULL, responses, 1))
        fail("the broker cannot be reached");
    while (!subscribed)
        if (mosquitto_loop(client, 100, 1))
            fail("the connection is lost");
    if (subscribed < 0)
        fail("the subscription is refused");
    while (fgets(line, sizeof line, stdin)) {
        uint32_t k = 0;
        char *from = line, *to;
        long sent, retried = 0;
        for (; k < MOST_COLUMNS; k++, from = to) {
            row[k] = strtof(from, &to);
            if (to == from)
                break;
        }
        if (!k)
            continue;
        if (fread(id, 1, sizeof id, source) != sizeof id)
            fail("no random numbers");
        write_request(argv[4], argv[5], row, k);
        answer_size = 0;
        mosquitto_publish(client, NULL, requests, (int)message_size, message, 1, false);
        sent = now_ms();
        while (!answer_size && now_ms() - sent < DEADLINE_MS) {
            if (mosquitto_loop(client, 50, 1))
                break; /* a real device would connect again, and go on without the cloud */
            if (!retried && !answer_size && now_ms() - sent >= RETRY_MS) {
                mosquitto_publish(client, NULL, requests, (int)message_size, message, 1, false);
                retried = 1;
            }
        }
        if (answer_size)
            print_answer();
        else
            puts("fallback");
        fflush(stdout);
    }
    mosquitto_disconnect(client);
    mosquitto_destroy(client);
    mosquitto_lib_cleanup();
    return 0;
}
