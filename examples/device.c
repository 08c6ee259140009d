/* A device of docs/wire.md that sends each row to the high-cost model and prints the answer.
 *
 *   cc -std=c99 -O2 device.c -lmosquitto -o device
 *   echo 0.1 2 3.5 | ./device localhost 1883 pi-1 digits 1
 *
 * It reads rows of numbers from standard input. For each row it prints the class index and the
 * probabilities, "error CODE" if the request is refused, or "fallback" if no response arrives in
 * time. A real device would then print the answer of its own last stage. */
#define _POSIX_C_SOURCE 200809L
#include <mosquitto.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEADLINE_MS = 5000, RETRY_MS = 1000, KEEPALIVE_S = 10 };
enum { MAX_COLUMNS = 16384, MAX_MESSAGE_BYTES = 131072, ID_BYTES = 16, CRC_BYTES = 4 };

static uint8_t request[MAX_MESSAGE_BYTES], response[MAX_MESSAGE_BYTES];
static size_t request_size;
static size_t response_size; /* 0 until the response has arrived */
static uint8_t request_id[ID_BYTES];

static void fail(const char *reason)
{
    fprintf(stderr, "%s\n", reason);
    exit(2);
}

/* CRC-32 as in zlib */
static uint32_t crc32(const uint8_t *bytes, size_t size)
{
    uint32_t crc = 0xffffffff;
    size_t i;
    for (i = 0; i < size; i++) {
        int bit;
        crc ^= bytes[i];
        for (bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static uint32_t read_big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static uint32_t read_little_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[3] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[1] << 8 | bytes[0];
}

/* -- write CBOR (RFC 8949, section 3) ------------------------------------------------------ */

enum { CBOR_UNSIGNED, CBOR_BYTES = 2, CBOR_TEXT, CBOR_LIST, CBOR_MAP, CBOR_TAG };
enum { FLOAT32_ARRAY_TAG = 85 }; /* little-endian, RFC 8746 */

static void write_bytes(const void *bytes, size_t size)
{
    if (request_size + size > MAX_MESSAGE_BYTES)
        fail("the request is too large");
    memcpy(request + request_size, bytes, size);
    request_size += size;
}

static void write_big_endian(uint32_t number)
{
    uint8_t bytes[4] = {(uint8_t)(number >> 24), (uint8_t)(number >> 16), (uint8_t)(number >> 8),
                        (uint8_t)number};
    write_bytes(bytes, 4);
}

/* The head of an item. Its number always takes four bytes, which is valid for small numbers too. */
static void write_head(unsigned major_type, uint32_t number)
{
    uint8_t first_byte = (uint8_t)(major_type << 5 | 26);
    write_bytes(&first_byte, 1);
    write_big_endian(number);
}

static void write_text(const char *text)
{
    write_head(CBOR_TEXT, (uint32_t)strlen(text));
    write_bytes(text, strlen(text));
}

static void write_unsigned_entry(const char *key, uint32_t number)
{
    write_text(key);
    write_head(CBOR_UNSIGNED, number);
}

static void write_text_entry(const char *key, const char *text)
{
    write_text(key);
    write_text(text);
}

static void write_request(const char *model, const char *version, const float *row,
                          uint32_t n_columns)
{
    uint32_t column;
    request_size = 0;
    write_head(CBOR_MAP, 9); /* number of entries */
    write_unsigned_entry("v", 1);
    write_text("id");
    write_head(CBOR_BYTES, ID_BYTES);
    write_bytes(request_id, ID_BYTES);
    write_text_entry("m", model);
    write_text_entry("mv", version);
    write_unsigned_entry("ttl", DEADLINE_MS);
    write_unsigned_entry("n", 1);
    write_unsigned_entry("k", n_columns);
    write_text("x");
    write_head(CBOR_TAG, FLOAT32_ARRAY_TAG);
    write_head(CBOR_BYTES, 4 * n_columns);
    for (column = 0; column < n_columns; column++) {
        uint32_t bits;
        uint8_t bytes[4];
        memcpy(&bits, row + column, 4);
        bytes[0] = (uint8_t)bits;
        bytes[1] = (uint8_t)(bits >> 8);
        bytes[2] = (uint8_t)(bits >> 16);
        bytes[3] = (uint8_t)(bits >> 24);
        write_bytes(bytes, 4);
    }
    write_text("crc");
    write_head(CBOR_BYTES, CRC_BYTES);
    write_big_endian(crc32(request, request_size));
}

/* -- read CBOR ----------------------------------------------------------------------------- */

typedef struct {
    unsigned major_type;  /* of the item itself; tags are skipped */
    uint64_t number;      /* the number, or the length of bytes or a text */
    const uint8_t *bytes; /* content of bytes or of a text */
} cbor_item;

typedef struct {
    const uint8_t *position;
    const uint8_t *end;
} cbor_reader;

/* Reads an item; returns 0 for lists, maps and malformed items. */
static int read_item(cbor_reader *reader, cbor_item *item)
{
    do {
        unsigned low_bits, n_number_bytes;
        if (reader->position >= reader->end)
            return 0;
        item->major_type = *reader->position >> 5;
        low_bits = *reader->position & 31;
        reader->position++;
        if (low_bits > 27)
            return 0;
        n_number_bytes = low_bits < 24 ? 0 : 1u << (low_bits - 24);
        if (n_number_bytes > (size_t)(reader->end - reader->position))
            return 0;
        item->number = n_number_bytes ? 0 : low_bits;
        for (; n_number_bytes; n_number_bytes--) {
            item->number = item->number << 8 | *reader->position;
            reader->position++;
        }
    } while (item->major_type == CBOR_TAG);
    item->bytes = reader->position;
    if (item->major_type != CBOR_BYTES && item->major_type != CBOR_TEXT)
        return item->major_type != CBOR_LIST && item->major_type != CBOR_MAP;
    if (item->number > (uint64_t)(reader->end - reader->position))
        return 0;
    reader->position += item->number;
    return 1;
}

static int has_text(const cbor_item *item, const char *text)
{
    return item->number == strlen(text) && !memcmp(item->bytes, text, strlen(text));
}

/* Finds the value of a key in a message, which is one map; returns 0 if it is missing or of another
 * type. */
static int find_value(const uint8_t *message, size_t size, const char *key, unsigned major_type,
                      cbor_item *value)
{
    cbor_reader reader;
    unsigned n_entries;
    reader.position = message + 1;
    reader.end = message + size;
    if (size < 2 || message[0] >> 5 != CBOR_MAP)
        return 0;
    n_entries = message[0] & 31;
    if (n_entries == 24) { /* the next byte is the number of entries */
        n_entries = *reader.position;
        reader.position++;
    } else if (n_entries > 24) {
        return 0; /* a message has at most 32 entries */
    }
    for (; n_entries; n_entries--) {
        cbor_item entry_key;
        if (!read_item(&reader, &entry_key) || entry_key.major_type != CBOR_TEXT ||
            !read_item(&reader, value))
            return 0;
        if (has_text(&entry_key, key))
            return value->major_type == major_type;
    }
    return 0;
}

/* Finds the label and the probabilities of an answer; returns 0 if one is missing or malformed. */
static int find_answer(const uint8_t *message, size_t size, cbor_item *labels,
                       cbor_item *probabilities)
{
    return find_value(message, size, "y", CBOR_BYTES, labels) && labels->number == 2 &&
           find_value(message, size, "p", CBOR_BYTES, probabilities) &&
           probabilities->number % 4 == 0;
}

/* Whether a message responds to the outstanding request and no better response can follow.
 * After "busy" or "no-model", the retry or another pool of workers may still be answered. */
static int is_final_response(const uint8_t *message, size_t size)
{
    cbor_item value, probabilities;
    if (size < CRC_BYTES ||
        read_big_endian(message + size - CRC_BYTES) != crc32(message, size - CRC_BYTES))
        return 0;
    if (!find_value(message, size, "id", CBOR_BYTES, &value) || value.number != ID_BYTES ||
        memcmp(value.bytes, request_id, ID_BYTES))
        return 0;
    if (!find_value(message, size, "e", CBOR_TEXT, &value))
        return find_answer(message, size, &value, &probabilities);
    return !has_text(&value, "busy") && !has_text(&value, "no-model");
}

static void print_response(void)
{
    cbor_item error, labels, probabilities;
    uint64_t offset;
    if (find_value(response, response_size, "e", CBOR_TEXT, &error)) {
        printf("error %.*s\n", (int)error.number, (const char *)error.bytes);
        return;
    }
    if (!find_answer(response, response_size, &labels, &probabilities))
        return; /* `is_final_response` has found it */
    printf("%d", labels.bytes[0] | labels.bytes[1] << 8);
    for (offset = 0; offset < probabilities.number; offset += 4) {
        uint32_t bits = read_little_endian(probabilities.bytes + offset);
        float probability;
        memcpy(&probability, &bits, 4);
        printf(" %.9g", (double)probability);
    }
    putchar('\n');
}

/* -- MQTT ---------------------------------------------------------------------------------- */

static enum { SUBSCRIPTION_PENDING, SUBSCRIPTION_GRANTED, SUBSCRIPTION_REFUSED } subscription;

static void on_subscribe(struct mosquitto *client, void *context, int packet_id, int n_topics,
                         const int *granted_qos)
{
    (void)client, (void)context, (void)packet_id;
    subscription =
        n_topics == 1 && granted_qos[0] < 128 ? SUBSCRIPTION_GRANTED : SUBSCRIPTION_REFUSED;
}

static void on_message(struct mosquitto *client, void *context,
                       const struct mosquitto_message *message)
{
    (void)client, (void)context;
    if (response_size || message->payloadlen <= 0 || message->payloadlen > MAX_MESSAGE_BYTES)
        return;
    if (is_final_response(message->payload, (size_t)message->payloadlen)) {
        response_size = (size_t)message->payloadlen;
        memcpy(response, message->payload, response_size);
    }
}

static struct mosquitto *connect_device(const char *host, int port, const char *device)
{
    char client_id[128], response_topic[128];
    struct mosquitto *client;
    snprintf(client_id, sizeof client_id, "gw-%s", device);
    snprintf(response_topic, sizeof response_topic, "gw/v1/%s/rsp", device);
    mosquitto_lib_init();
    client = mosquitto_new(client_id, true, NULL);
    mosquitto_int_option(client, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V311);
    mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1); /* without it, 40 ms slower */
    mosquitto_message_callback_set(client, on_message);
    mosquitto_subscribe_callback_set(client, on_subscribe);
    if (mosquitto_connect(client, host, port, KEEPALIVE_S) ||
        mosquitto_subscribe(client, NULL, response_topic, 1))
        fail("the broker cannot be reached");
    while (subscription == SUBSCRIPTION_PENDING)
        if (mosquitto_loop(client, 100, 1))
            fail("the connection is lost");
    if (subscription == SUBSCRIPTION_REFUSED)
        fail("the subscription is refused");
    return client;
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

/* Sends the request, and once more after RETRY_MS; waits for the response until the deadline. */
static void exchange(struct mosquitto *client, const char *request_topic)
{
    long sent_at = now_ms();
    int is_retried = 0;
    response_size = 0;
    mosquitto_publish(client, NULL, request_topic, (int)request_size, request, 1, false);
    while (!response_size && now_ms() - sent_at < DEADLINE_MS) {
        if (mosquitto_loop(client, 50, 1))
            return; /* a real device would connect again, and answer without the cloud until then */
        if (!is_retried && !response_size && now_ms() - sent_at >= RETRY_MS) {
            mosquitto_publish(client, NULL, request_topic, (int)request_size, request, 1, false);
            is_retried = 1;
        }
    }
}

/* Reads the numbers of a line into a row, and returns how many there are. */
static uint32_t read_row(const char *line, float *row)
{
    uint32_t n_columns;
    for (n_columns = 0; n_columns < MAX_COLUMNS; n_columns++) {
        char *number_end;
        row[n_columns] = strtof(line, &number_end);
        if (number_end == line)
            break;
        line = number_end;
    }
    return n_columns;
}

int main(int argc, char **argv)
{
    static char line[64 * MAX_COLUMNS];
    static float row[MAX_COLUMNS];
    char request_topic[128];
    struct mosquitto *client;
    FILE *random_source = fopen("/dev/urandom", "rb");
    if (argc != 6 || !random_source)
        fail("usage: device HOST PORT DEVICE MODEL VERSION");
    client = connect_device(argv[1], atoi(argv[2]), argv[3]);
    snprintf(request_topic, sizeof request_topic, "gw/v1/%s/req", argv[3]);
    while (fgets(line, sizeof line, stdin)) {
        uint32_t n_columns = read_row(line, row);
        if (!n_columns)
            continue;
        if (fread(request_id, 1, ID_BYTES, random_source) != ID_BYTES)
            fail("/dev/urandom gives no random numbers");
        write_request(argv[4], argv[5], row, n_columns);
        exchange(client, request_topic);
        if (response_size)
            print_response();
        else
            puts("fallback");
        fflush(stdout);
    }
    mosquitto_disconnect(client);
    mosquitto_destroy(client);
    mosquitto_lib_cleanup();
    return 0;
}
