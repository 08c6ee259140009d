/* ${mark} ${version} from ${title}; see ${p}_wire.h and docs/wire.md of Gatewise. */
#include "${p}_wire.h"

#include <math.h>
#include <string.h>

${flash}
${tables}
#define MIN_RETRY_MS 20
#define MAX_PAUSE_MS 30000u
#define MAX_ENTRIES 32u

/* A key of up to three letters as one number. */
#define KEY(a, b, c) ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16)

/* -- writing ------------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *bytes;
    size_t capacity, size; /* size > capacity: the message did not fit */
} writer_type;

static void put_byte(writer_type *writer, uint8_t byte)
{
    if (writer->size < writer->capacity)
        writer->bytes[writer->size] = byte;
    writer->size++;
}

/* Append a piece that lies in flash. */
static void put_piece(writer_type *writer, const uint8_t *piece, size_t size)
{
    size_t i;
    for (i = 0; i < size; i++)
        put_byte(writer, READ(uint8_t, piece + i));
}

/* CRC-32 with the polynomial of Ethernet, without a table, which would take 1 KiB of flash. */
static uint32_t crc32_of(const uint8_t *bytes, size_t size)
{
    uint32_t crc = 0xffffffffu;
    while (size--) {
        int bit;
        crc ^= *bytes++;
        for (bit = 0; bit < 8; bit++)
            crc = crc & 1u ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

size_t ${p}_wire_encode_cbor(uint8_t *message, size_t capacity, const uint8_t *id, uint32_t ttl_ms,
                             const float *row)
{
    writer_type writer;
    uint32_t crc;
    int i, shift;
    writer.bytes = message;
    writer.capacity = capacity;
    writer.size = 0;
    put_piece(&writer, cbor_head, sizeof cbor_head);
    for (i = 0; i < 16; i++)
        put_byte(&writer, id[i]);
    put_piece(&writer, cbor_names, sizeof cbor_names);
    put_byte(&writer, 0x1a); /* an unsigned number of 4 bytes */
    for (shift = 24; shift >= 0; shift -= 8)
        put_byte(&writer, (uint8_t)(ttl_ms >> shift));
    put_piece(&writer, cbor_shape, sizeof cbor_shape);
    for (i = 0; i < ${P}_WIRE_COLUMNS; i++) {
        uint32_t bits;
        if (isinf(row[i]))
            return 0;
        memcpy(&bits, row + i, 4);
        for (shift = 0; shift < 32; shift += 8)
            put_byte(&writer, (uint8_t)(bits >> shift));
    }
    put_piece(&writer, cbor_tail, sizeof cbor_tail);
    if (writer.size + 4 > capacity)
        return 0;
    crc = crc32_of(message, writer.size);
    for (shift = 24; shift >= 0; shift -= 8)
        put_byte(&writer, (uint8_t)(crc >> shift));
    return writer.size;
}

/* Compute the float nearest to digits * 10^power. The 64 bits of `digits` are shifted up before each
   division and down before each product, so that they lose the least precision. */
static float float_of_decimal(uint64_t digits, int power)
{
    int exponent = 0;
    uint32_t mantissa;
    if (!digits)
        return 0.0f;
    for (; power > 0; power--) {
        for (; digits >> 60; exponent++)
            digits >>= 1;
        digits *= 10u;
    }
    for (; power < 0; power++) {
        for (; !(digits >> 63); exponent--)
            digits <<= 1;
        digits = digits / 10u + (digits % 10u >= 5u);
    }
    for (; !(digits >> 63); exponent--)
        digits <<= 1;
    /* round the 64 bits to 24, ties to even */
    mantissa = (uint32_t)(digits >> 40);
    digits &= ((uint64_t)1 << 40) - 1u;
    if (digits > (uint64_t)1 << 39 || (digits == (uint64_t)1 << 39 && (mantissa & 1u)))
        mantissa++;
    return ldexpf((float)mantissa, exponent + 40);
}

static void put_digits(writer_type *writer, uint64_t number)
{
    uint8_t digits[20];
    int n = 0;
    do {
        digits[n++] = (uint8_t)('0' + number % 10u);
        number /= 10u;
    } while (number);
    while (n)
        put_byte(writer, digits[--n]);
}

/* Write the shortest decimal number, of at most 9 digits, that reads back as the same float. */
static void put_number(writer_type *writer, float value)
{
    uint32_t bits;
    uint64_t digits, rounded_digits;
    int exponent, power = 0, n_digits, rounded_power;
    memcpy(&bits, &value, 4);
    if (bits >> 31)
        put_byte(writer, '-');
    bits &= 0x7fffffffu;
    memcpy(&value, &bits, 4);
    /* split into value = digits * 2^exponent, then convert to digits * 10^power */
    digits = bits & 0x7fffffu;
    exponent = (int)(bits >> 23);
    if (exponent)
        digits |= 0x800000u;
    else
        exponent = 1;
    exponent -= 150;
    while (digits && exponent < 0) {
        if (digits & 1u && digits < UINT64_MAX / 10u) {
            digits *= 10u;
            power--;
        }
        digits = (digits >> 1) + (digits & 1u);
        exponent++;
    }
    for (; digits && exponent > 0; exponent--) {
        if (digits >> 63) {
            digits = digits / 10u + (digits % 10u >= 5u);
            power++;
        }
        digits <<= 1;
    }
    /* 9 digits always suffice, and 6 often do; subnormal numbers get 9, because `float_of_decimal`
       rounds them twice */
    for (n_digits = bits >> 23 ? 6 : 9; digits >= 1000000000u && n_digits <= 9; n_digits++) {
        uint64_t power_of_ten = 1;
        int i;
        for (i = 0; i < n_digits; i++)
            power_of_ten *= 10u;
        rounded_digits = digits;
        rounded_power = power;
        for (; rounded_digits >= power_of_ten * 10u; rounded_power++)
            rounded_digits /= 10u;
        if (rounded_digits >= power_of_ten) {
            rounded_digits = rounded_digits / 10u + (rounded_digits % 10u >= 5u);
            rounded_power++;
        }
        if (n_digits == 9 || float_of_decimal(rounded_digits, rounded_power) == value) {
            digits = rounded_digits;
            power = rounded_power;
        }
    }
    for (; digits && digits % 10u == 0u; power++)
        digits /= 10u;
    put_digits(writer, digits);
    if (digits && power) {
        put_byte(writer, 'e');
        if (power < 0)
            put_byte(writer, '-');
        put_digits(writer, (uint64_t)(power < 0 ? -power : power));
    }
}

/* One of the 32 lower-case hexadecimal digits of an id. */
static uint8_t hex_digit(const uint8_t *id, int number)
{
    int nibble = number % 2 ? id[number / 2] & 15 : id[number / 2] >> 4;
    return (uint8_t)(nibble < 10 ? '0' + nibble : 'a' + nibble - 10);
}

size_t ${p}_wire_encode_json(uint8_t *message, size_t capacity, const uint8_t *id, uint32_t ttl_ms,
                             const float *row)
{
    writer_type writer;
    int i;
    writer.bytes = message;
    writer.capacity = capacity;
    writer.size = 0;
    put_piece(&writer, json_head, sizeof json_head);
    for (i = 0; i < 32; i++)
        put_byte(&writer, hex_digit(id, i));
    put_piece(&writer, json_names, sizeof json_names);
    put_digits(&writer, ttl_ms);
    put_piece(&writer, json_shape, sizeof json_shape);
    for (i = 0; i < ${P}_WIRE_COLUMNS; i++) {
        if (isinf(row[i]))
            return 0;
        if (i)
            put_byte(&writer, ',');
        if (isnan(row[i]))
            put_piece(&writer, json_null, sizeof json_null);
        else
            put_number(&writer, row[i]);
    }
    put_byte(&writer, ']');
    put_byte(&writer, '}');
    return writer.size > capacity ? 0 : writer.size;
}

/* -- reading ------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *next, *end;
} reader_type;

/* Flags of the entries in a response. Each entry may occur once, except entries with unknown keys,
   which are ignored. */
enum {
    HAS_LAYOUT = 1, HAS_ID = 2, HAS_MODEL = 4, HAS_VERSION = 8, HAS_ROWS = 16, HAS_CLASSES = 32,
    HAS_LABEL = 64, HAS_PROBABILITIES = 128, HAS_TIME = 256, HAS_ERROR = 512, HAS_WAIT = 1024,
    HAS_UNKNOWN_KEY = 2048,
    ANSWER_ENTRIES =
        HAS_MODEL | HAS_VERSION | HAS_ROWS | HAS_CLASSES | HAS_LABEL | HAS_PROBABILITIES | HAS_TIME
};

/* Return the number of a key; 0 for a key of more than three letters, which no known entry has. */
static uint32_t key_of(const uint8_t *bytes, size_t size)
{
    uint32_t key = 0;
    size_t i;
    if (size > 3)
        return 0;
    for (i = 0; i < size; i++)
        key |= (uint32_t)bytes[i] << 8 * i;
    return key;
}

/* Whether bytes equal a piece that lies in flash. */
static int is_piece(const uint8_t *bytes, size_t size, const uint8_t *piece, size_t piece_size)
{
    size_t i;
    if (size != piece_size)
        return 0;
    for (i = 0; i < size; i++)
        if (bytes[i] != READ(uint8_t, piece + i))
            return 0;
    return 1;
}

/* Whether a value can be a probability, which half precision may round by 0.001; false for NaN. */
static int is_probability(float value)
{
    return value >= -0.001f && value <= 1.001f;
}

/* Store an error code of 1 to 32 bytes. */
static int store_error(${p}_wire_response *response, const uint8_t *bytes, size_t size)
{
    if (size < 1 || size > 32)
        return 0;
    memcpy(response->error, bytes, size);
    response->error[size] = 0;
    return HAS_ERROR;
}

static void clear_response(${p}_wire_response *response)
{
    memset(response, 0, sizeof *response);
    response->label = -1;
}

/* Whether the entries form a complete answer or a refusal. */
static int is_complete(int entries, ${p}_wire_response *response)
{
    if ((entries & (HAS_LAYOUT | HAS_ID)) != (HAS_LAYOUT | HAS_ID))
        return 0;
    if (entries & HAS_ERROR) {
        response->label = -1;
        return 1;
    }
    return (entries & ANSWER_ENTRIES) == ANSWER_ENTRIES && response->label < ${P}_CLASSES;
}

typedef struct {
    uint8_t kind; /* CBOR major type: 0 unsigned number, 2 bytes, 3 text */
    uint8_t tag;  /* CBOR tag; 0 if the item has no tag */
    uint32_t number;
    const uint8_t *bytes; /* contents of a byte string or a text, of length `size` */
    size_t size;
} item_type;

/* Read an item that is not a list or a map, with at most one tag; return 0 for any other item. A
   number of more than 32 bits becomes the largest one. */
static int read_item(reader_type *reader, item_type *item)
{
    int has_tag = 0;
    item->tag = 0;
    for (;;) {
        unsigned length_code, n_bytes;
        if (reader->next >= reader->end)
            return 0;
        item->kind = (uint8_t)(*reader->next >> 5);
        length_code = *reader->next++ & 31u;
        if (length_code > 27u) /* an indefinite length */
            return 0;
        n_bytes = length_code < 24u ? 0u : 1u << (length_code - 24u);
        if (n_bytes > (size_t)(reader->end - reader->next))
            return 0;
        for (item->number = n_bytes ? 0u : length_code; n_bytes; n_bytes--) {
            uint8_t byte = *reader->next++;
            item->number = item->number >> 24 ? UINT32_MAX : item->number << 8 | byte;
        }
        if (item->kind != 6)
            break;
        if (has_tag || item->number > 255u)
            return 0;
        has_tag = 1;
        item->tag = (uint8_t)item->number;
    }
    item->bytes = reader->next;
    item->size = 0;
    if (item->kind == 2 || item->kind == 3) {
        if (item->number > (size_t)(reader->end - reader->next))
            return 0;
        item->size = (size_t)item->number;
        reader->next += item->size;
    }
    return item->kind != 4 && item->kind != 5;
}

static uint32_t little_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

/* Read a typed array (tag 85, float32) with a probability for each class. */
static int read_probabilities(const item_type *item, float *probability)
{
    int i;
    if (item->kind != 2 || item->tag != 85 || item->size != 4u * ${P}_CLASSES)
        return 0;
    for (i = 0; i < ${P}_CLASSES; i++) {
        uint32_t bits = little_endian(item->bytes + 4 * i);
        memcpy(probability + i, &bits, 4);
        if (!is_probability(probability[i]))
            return 0;
    }
    return HAS_PROBABILITIES;
}

/* Read an entry and return its flag; return 0 if it is invalid or answers another request. */
static int read_entry(const item_type *key, const item_type *item, const uint8_t *id,
                      ${p}_wire_response *response)
{
    int is_number = item->kind == 0 && !item->tag;
    switch (key_of(key->bytes, key->size)) {
    case KEY('v', 0, 0):
        return is_number && item->number == 1u ? HAS_LAYOUT : 0;
    case KEY('i', 'd', 0):
        return item->kind == 2 && item->size == 16u && !memcmp(item->bytes, id, 16) ? HAS_ID : 0;
    case KEY('m', 0, 0):
        return item->kind == 3 &&
               is_piece(item->bytes, item->size, model, sizeof model) ? HAS_MODEL : 0;
    case KEY('m', 'v', 0):
        return item->kind == 3 &&
               is_piece(item->bytes, item->size, model_version, sizeof model_version)
                   ? HAS_VERSION : 0;
    case KEY('n', 0, 0):
        return is_number && item->number == 1u ? HAS_ROWS : 0;
    case KEY('c', 0, 0):
        return is_number && item->number == ${P}_CLASSES ? HAS_CLASSES : 0;
    case KEY('y', 0, 0):
        if (item->kind != 2 || item->tag != 69 || item->size != 2u)
            return 0;
        response->label = item->bytes[0] | item->bytes[1] << 8;
        return HAS_LABEL;
    case KEY('p', 0, 0):
        return read_probabilities(item, response->probability);
    case KEY('u', 's', 0):
        response->worker_us = item->number;
        return is_number ? HAS_TIME : 0;
    case KEY('w', 0, 0):
        response->wait_ms = item->number;
        return is_number ? HAS_WAIT : 0;
    case KEY('e', 0, 0):
        return item->kind == 3 ? store_error(response, item->bytes, item->size) : 0;
    default:
        return HAS_UNKNOWN_KEY;
    }
}

int ${p}_wire_decode_cbor(const uint8_t *message, size_t size, const uint8_t *id,
                          ${p}_wire_response *response)
{
    reader_type reader;
    unsigned n_entries;
    uint32_t crc = 0;
    size_t i;
    int entries = 0;
    if (size < 8 || *message >> 5 != 5)
        return 0;
    for (i = size - 4; i < size; i++)
        crc = crc << 8 | message[i];
    if (crc != crc32_of(message, size - 4))
        return 0;
    clear_response(response);
    reader.next = message + 1;
    reader.end = message + size;
    n_entries = *message & 31u;
    if (n_entries == 24u)
        n_entries = *reader.next++;
    if (n_entries > MAX_ENTRIES)
        return 0;
    for (; n_entries; n_entries--) {
        item_type key, item;
        int entry;
        if (!read_item(&reader, &key) || key.kind != 3 || key.tag || !read_item(&reader, &item))
            return 0;
        entry = read_entry(&key, &item, id, response);
        if (!entry || (entries & entry & ~HAS_UNKNOWN_KEY))
            return 0;
        entries |= entry;
    }
    return reader.next == reader.end && is_complete(entries, response);
}

/* -- JSON: objects without escapes in their keys and names, as workers write them ---------------- */

/* Skip white space and return the next character; 0 at the end. */
static uint8_t peek(reader_type *reader)
{
    while (reader->next < reader->end && (*reader->next == ' ' || *reader->next == '\t' ||
                                          *reader->next == '\n' || *reader->next == '\r'))
        reader->next++;
    return reader->next < reader->end ? *reader->next : 0;
}

/* Skip white space and a character; return 0 if another character follows. */
static int skip_mark(reader_type *reader, char mark)
{
    if (peek(reader) != (uint8_t)mark)
        return 0;
    reader->next++;
    return 1;
}

static int read_text(reader_type *reader, const uint8_t **bytes, size_t *size)
{
    if (!skip_mark(reader, '"'))
        return 0;
    for (*bytes = reader->next; reader->next < reader->end && *reader->next != '"'; reader->next++)
        if (*reader->next == '\\' && reader->end - reader->next > 1)
            reader->next++;
    *size = (size_t)(reader->next - *bytes);
    return skip_mark(reader, '"');
}

static int is_digit(const reader_type *reader)
{
    return reader->next < reader->end && *reader->next >= '0' && *reader->next <= '9';
}

static int read_float(reader_type *reader, float *value)
{
    uint64_t digits = 0;
    int power = 0, is_negative, n_digits = 0, has_point = 0;
    peek(reader);
    is_negative = reader->next < reader->end && *reader->next == '-';
    reader->next += is_negative;
    for (; is_digit(reader) ||
           (!has_point && reader->next < reader->end && *reader->next == '.');
         reader->next++) {
        if (*reader->next == '.') {
            has_point = 1;
            continue;
        }
        n_digits++;
        if (digits < UINT64_MAX / 100u) {
            digits = digits * 10u + (uint64_t)(*reader->next - '0');
            power -= has_point;
        } else {
            power += !has_point;
        }
    }
    if (n_digits && reader->next < reader->end && (*reader->next == 'e' || *reader->next == 'E')) {
        int exponent = 0, is_negative_exponent;
        reader->next++;
        is_negative_exponent = reader->next < reader->end && *reader->next == '-';
        reader->next +=
            is_negative_exponent || (reader->next < reader->end && *reader->next == '+');
        for (; is_digit(reader); reader->next++)
            exponent = exponent < 1000 ? exponent * 10 + (*reader->next - '0') : exponent;
        power += is_negative_exponent ? -exponent : exponent;
    }
    if (power < -400 || power > 400)
        return 0;
    *value = is_negative ? -float_of_decimal(digits, power) : float_of_decimal(digits, power);
    return n_digits > 0;
}

static int read_unsigned(reader_type *reader, uint32_t *number)
{
    peek(reader);
    if (!is_digit(reader))
        return 0;
    for (*number = 0; is_digit(reader) && *number < 400000000u; reader->next++)
        *number = *number * 10u + (uint32_t)(*reader->next - '0');
    return !is_digit(reader);
}

/* Skip the value of an unknown key: brackets up to their closing bracket, and whole strings. */
static int skip_unknown_entry(reader_type *reader)
{
    int depth = 0;
    const uint8_t *bytes;
    size_t size;
    for (;;) {
        uint8_t character = peek(reader);
        if (!character || (!depth && (character == ',' || character == '}')))
            return character != 0;
        if (character == '"') {
            if (!read_text(reader, &bytes, &size))
                return 0;
            continue;
        }
        depth += (character == '[' || character == '{') - (character == ']' || character == '}');
        reader->next++;
    }
}

/* Whether a text is the id in lower-case hexadecimal digits. */
static int is_id_in_hex(const uint8_t *text, size_t size, const uint8_t *id)
{
    int i;
    if (size != 32)
        return 0;
    for (i = 0; i < 32; i++)
        if (text[i] != hex_digit(id, i))
            return 0;
    return 1;
}

/* Read the probabilities of all classes, a list in a list with one row. */
static int read_json_probabilities(reader_type *reader, float *probability)
{
    int i;
    if (!skip_mark(reader, '[') || !skip_mark(reader, '['))
        return 0;
    for (i = 0; i < ${P}_CLASSES; i++)
        if ((i && !skip_mark(reader, ',')) || !read_float(reader, probability + i) ||
            !is_probability(probability[i]))
            return 0;
    return skip_mark(reader, ']') && skip_mark(reader, ']') ? HAS_PROBABILITIES : 0;
}

static int read_json_entry(reader_type *reader, uint32_t key, const uint8_t *id,
                           ${p}_wire_response *response)
{
    const uint8_t *text = 0;
    size_t size = 0;
    uint32_t number = 0;
    int is_text = key == KEY('i', 'd', 0) || key == KEY('m', 0, 0) || key == KEY('m', 'v', 0) ||
                  key == KEY('e', 0, 0);
    int is_number = key == KEY('v', 0, 0) || key == KEY('n', 0, 0) || key == KEY('c', 0, 0) ||
                    key == KEY('u', 's', 0) || key == KEY('w', 0, 0);
    if ((is_text && !read_text(reader, &text, &size)) || (is_number && !read_unsigned(reader, &number)))
        return 0;
    switch (key) {
    case KEY('v', 0, 0):
        return number == 1u ? HAS_LAYOUT : 0;
    case KEY('i', 'd', 0):
        return is_id_in_hex(text, size, id) ? HAS_ID : 0;
    case KEY('m', 0, 0):
        return is_piece(text, size, model, sizeof model) ? HAS_MODEL : 0;
    case KEY('m', 'v', 0):
        return is_piece(text, size, model_version, sizeof model_version) ? HAS_VERSION : 0;
    case KEY('n', 0, 0):
        return number == 1u ? HAS_ROWS : 0;
    case KEY('c', 0, 0):
        return number == ${P}_CLASSES ? HAS_CLASSES : 0;
    case KEY('y', 0, 0):
        if (!skip_mark(reader, '[') || !read_unsigned(reader, &number) ||
            !skip_mark(reader, ']') || number >= ${P}_CLASSES)
            return 0;
        response->label = (int32_t)number;
        return HAS_LABEL;
    case KEY('p', 0, 0):
        return read_json_probabilities(reader, response->probability);
    case KEY('u', 's', 0):
        response->worker_us = number;
        return HAS_TIME;
    case KEY('w', 0, 0):
        response->wait_ms = number;
        return HAS_WAIT;
    case KEY('e', 0, 0):
        return store_error(response, text, size);
    default:
        return skip_unknown_entry(reader) ? HAS_UNKNOWN_KEY : 0;
    }
}

int ${p}_wire_decode_json(const uint8_t *message, size_t size, const uint8_t *id,
                          ${p}_wire_response *response)
{
    reader_type reader;
    int entries = 0;
    clear_response(response);
    reader.next = message;
    reader.end = message + size;
    if (!skip_mark(&reader, '{'))
        return 0;
    do {
        const uint8_t *key;
        size_t key_size;
        int entry;
        if (!read_text(&reader, &key, &key_size) || !skip_mark(&reader, ':'))
            return 0;
        entry = read_json_entry(&reader, key_of(key, key_size), id, response);
        if (!entry || (entries & entry & ~HAS_UNKNOWN_KEY))
            return 0;
        entries |= entry;
    } while (skip_mark(&reader, ','));
    return skip_mark(&reader, '}') && !peek(&reader) && is_complete(entries, response);
}

/* -- one request at a time ---------------------------------------------------------------------- */

/* Round trips are smoothed in sixteenths of a ms, because division would cut off fractions of a ms. */
#define SIXTEENTHS 16u

/* Whether `time_ms` has come; this also holds after the clock wrapped around. */
static int is_due(uint32_t now_ms, uint32_t time_ms)
{
    return (int32_t)(now_ms - time_ms) >= 0;
}

void ${p}_wire_begin(${p}_wire *wire, ${p}_wire_publish publish, ${p}_wire_random random,
                     void *context)
{
    memset(wire, 0, sizeof *wire);
    wire->publish = publish;
    wire->random = random;
    wire->context = context;
    wire->backoff = 1;
}

int ${p}_wire_row(${p}_instance *instance, ${p}_acquire acquire, void *context, float *row)
{
    int i;
    for (i = 0; i < ${P}_WIRE_COLUMNS; i++) {
        int feature = (int)READ(${column_type}, request_columns + i);
        const float *value = ${p}_value(instance, feature);
        if (value)
            row[i] = *value;
        else /* a stage has refused a missing value if it acquired none; the cloud may accept it */
            row[i] = ${p}_acquired(instance, feature) ? NAN : acquire(feature, context);
        if (${refused})
            return 0;
    }
    return 1;
}

/* Expected round trip; before the first response, a quarter of the time to the deadline. */
static uint32_t expected_ms(const ${p}_wire *wire)
{
    return wire->has_round_trip ? wire->round_trip / SIXTEENTHS : (wire->deadline - wire->sent_at) / 4u;
}

/* Round trip that few responses exceed. */
static uint32_t slow_ms(const ${p}_wire *wire)
{
    uint32_t usual_ms = expected_ms(wire);
    uint32_t deviating_ms = usual_ms + 4u * (wire->deviation / SIXTEENTHS);
    return 2u * usual_ms > deviating_ms ? 2u * usual_ms : deviating_ms;
}

/* Time after which a request without a response is sent again. */
static uint32_t retry_timeout_ms(const ${p}_wire *wire)
{
    uint32_t timeout_ms = slow_ms(wire);
    return wire->backoff * (timeout_ms > MIN_RETRY_MS ? timeout_ms : MIN_RETRY_MS);
}

/* Plan a retry, unless its response is expected after the deadline. */
static void plan_retry(${p}_wire *wire, uint32_t retry_ms)
{
    wire->retry_at = retry_ms;
    wire->plans_retry = (uint8_t)is_due(wire->deadline, retry_ms + expected_ms(wire));
}

/* Update the smoothed round trip and its deviation: RFC 6298, with beta = 1/4 and alpha = 1/8. */
static void measure_round_trip(${p}_wire *wire, uint32_t round_trip_ms)
{
    uint32_t sample = round_trip_ms * SIXTEENTHS;
    uint32_t distance =
        sample > wire->round_trip ? sample - wire->round_trip : wire->round_trip - sample;
    wire->backoff = 1;
    if (!wire->has_round_trip) {
        wire->has_round_trip = 1;
        wire->round_trip = sample;
        wire->deviation = sample / 2u;
        return;
    }
    wire->deviation = wire->deviation - wire->deviation / 4u + distance / 4u;
    wire->round_trip = wire->round_trip - wire->round_trip / 8u + sample / 8u;
}

/* Measure the round trip of a response. The response to a request that was sent twice may answer either
   copy; if it came too soon or too late to answer the second copy, it answers the first. Otherwise
   nothing is measured (Karn's rule), but the next retry waits longer. */
static void update_round_trip(${p}_wire *wire, uint32_t now_ms)
{
    uint32_t since_first_ms = now_ms - wire->sent_at;
    uint32_t since_retry_ms = now_ms - wire->resent_at;
    if (!wire->was_resent)
        measure_round_trip(wire, since_first_ms);
    else if (wire->was_refused) /* the first copy was refused, so the second copy was answered */
        measure_round_trip(wire, since_retry_ms);
    else if (!wire->has_round_trip || since_retry_ms < expected_ms(wire) / 2u ||
             since_retry_ms > slow_ms(wire))
        measure_round_trip(wire, since_first_ms);
    else if (wire->backoff < 4)
        wire->backoff = (uint8_t)(2 * wire->backoff);
}

int ${p}_wire_offload(${p}_wire *wire, const float *row, uint32_t now_ms, uint32_t deadline_ms)
{
    wire->state = ${P}_WIRE_UNSENT;
    /* no pause is longer than MAX_PAUSE_MS, so this also holds long after the pause */
    wire->is_paused = (uint8_t)(wire->is_paused && wire->paused_until - now_ms - 1u < MAX_PAUSE_MS);
    if (wire->is_paused)
        return wire->state;
    wire->random(wire->id, sizeof wire->id, wire->context);
#if ${P}_WIRE_JSON
    wire->size = (uint16_t)${p}_wire_encode_json(wire->message, sizeof wire->message, wire->id,
                                                 deadline_ms, row);
#else
    wire->size = (uint16_t)${p}_wire_encode_cbor(wire->message, sizeof wire->message, wire->id,
                                                 deadline_ms, row);
#endif
    if (!wire->size || !wire->publish(wire->message, wire->size, wire->context))
        return wire->state;
    wire->state = ${P}_WIRE_WAITING;
    wire->sent_at = now_ms;
    wire->deadline = now_ms + deadline_ms;
    wire->n_copies_out = 1;
    wire->was_resent = 0;
    wire->was_refused = 0;
    clear_response(&wire->response);
    plan_retry(wire, now_ms + retry_timeout_ms(wire));
    return wire->state;
}

static int may_be_retried(const char *error)
{
    return !strcmp(error, "busy") || !strcmp(error, "no-model");
}

static void end_at_deadline(${p}_wire *wire, uint32_t now_ms)
{
    if (wire->state == ${P}_WIRE_WAITING && is_due(now_ms, wire->deadline))
        wire->state = ${P}_WIRE_TIMEOUT;
}

int ${p}_wire_receive(${p}_wire *wire, const uint8_t *message, size_t size, uint32_t now_ms)
{
    ${p}_wire_response *response = &wire->response;
    uint32_t pause_ms;
    int is_response, is_last_copy;
    /* not by polling, which may send the retry: the MQTT client may write it over `message` */
    end_at_deadline(wire, now_ms);
    if (wire->state != ${P}_WIRE_WAITING && wire->state != ${P}_WIRE_TIMEOUT)
        return wire->state;
#if ${P}_WIRE_JSON
    is_response = ${p}_wire_decode_json(message, size, wire->id, response);
#else
    is_response = ${p}_wire_decode_cbor(message, size, wire->id, response);
#endif
    if (!is_response)
        return wire->state;
    if (response->label >= 0) {
        /* also if it is late: a link slower than the deadline would otherwise never be measured */
        update_round_trip(wire, now_ms);
        if (wire->state == ${P}_WIRE_WAITING)
            wire->state = ${P}_WIRE_ANSWERED;
        return wire->state;
    }
    if (wire->state == ${P}_WIRE_TIMEOUT)
        return wire->state;
    is_last_copy = wire->n_copies_out == 1;
    if (wire->n_copies_out) /* several pools of workers may refuse one copy */
        wire->n_copies_out--;
    if (may_be_retried(response->error)) {
        pause_ms = response->wait_ms < MAX_PAUSE_MS ? response->wait_ms : MAX_PAUSE_MS;
        if (pause_ms) {
            wire->is_paused = 1;
            wire->paused_until = now_ms + pause_ms;
        }
        if (is_last_copy && !wire->was_resent) {
            wire->was_refused = 1;
            plan_retry(wire, now_ms + (pause_ms > expected_ms(wire) ? pause_ms : expected_ms(wire)));
        }
        if (wire->n_copies_out || wire->plans_retry) /* another worker may answer */
            return wire->state;
    }
    wire->state = ${P}_WIRE_REFUSED;
    return wire->state;
}

int ${p}_wire_poll(${p}_wire *wire, uint32_t now_ms)
{
    end_at_deadline(wire, now_ms);
    if (wire->state != ${P}_WIRE_WAITING || !wire->plans_retry || !is_due(now_ms, wire->retry_at))
        return wire->state;
    wire->plans_retry = 0;
    if (wire->publish(wire->message, wire->size, wire->context)) {
        wire->was_resent = 1;
        wire->resent_at = now_ms;
        wire->n_copies_out++;
    } else if (!wire->n_copies_out) {
        wire->state = ${P}_WIRE_REFUSED;
    }
    return wire->state;
}
