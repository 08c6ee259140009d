/* ${mark} ${version} from ${title}: a client of the cloud for offloaded instances.

   The firmware passes the row, two callbacks and the time of a steady clock in ms:

       static ${p}_wire wire;
       ${p}_wire_begin(&wire, publish, random_bytes, context);

       float row[${P}_WIRE_COLUMNS];
       if (answer.outcome == ${P}_OFFLOAD && ${p}_wire_row(&instance, acquire, context, row))
           ${p}_wire_offload(&wire, row, now_ms, 500);

   Subscribe to gw/v1/<device>/rsp, pass every message from that topic to ${p}_wire_receive, and call
   ${p}_wire_poll until it no longer returns ${P}_WIRE_WAITING. With -D${P}_WIRE_JSON=1, in
   the library and the firmware, messages are JSON, on the topics .../req/json and .../rsp/json. The
   code allocates no memory and keeps all state in the struct. */
#ifndef ${P}_WIRE_H
#define ${P}_WIRE_H

#include "${p}.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${P}_WIRE_MODEL ${model}
#define ${P}_WIRE_VERSION ${model_version}
#define ${P}_WIRE_COLUMNS ${n_columns} /* values in a request */

/* Bytes of the largest request and response; the MQTT client's buffer must hold them. */
#define ${P}_WIRE_CBOR_BYTES ${cbor_bytes}
#define ${P}_WIRE_CBOR_RESPONSE_BYTES ${cbor_response_bytes}
#define ${P}_WIRE_JSON_BYTES ${json_bytes}
#define ${P}_WIRE_JSON_RESPONSE_BYTES ${json_response_bytes}

#ifndef ${P}_WIRE_JSON
#define ${P}_WIRE_JSON 0
#endif
#if ${P}_WIRE_JSON
/* The struct has another size, so a library that was compiled without the macro must not link. */
#define ${p}_wire_begin ${p}_wire_begin_json
#define ${P}_WIRE_BYTES ${P}_WIRE_JSON_BYTES
#define ${P}_WIRE_RESPONSE_BYTES ${P}_WIRE_JSON_RESPONSE_BYTES
#else
#define ${P}_WIRE_BYTES ${P}_WIRE_CBOR_BYTES
#define ${P}_WIRE_RESPONSE_BYTES ${P}_WIRE_CBOR_RESPONSE_BYTES
#endif

/* A response: a label and probabilities in the order of the classes, or a refusal. */
typedef struct {
    int32_t label;      /* class number; -1 in a refusal */
    uint32_t worker_us; /* time in the worker */
    uint32_t wait_ms;   /* in a refusal: time until the next request may be sent */
    char error[33];     /* in a refusal: its code, such as "busy" */
    float probability[${P}_CLASSES];
} ${p}_wire_response;

/* Encode a request without sending it. Return the number of bytes written, or 0 if `capacity` is too
   small or a value is infinite. NaN is a missing value. */
size_t ${p}_wire_encode_cbor(uint8_t *message, size_t capacity, const uint8_t *id, uint32_t ttl_ms,
                             const float *row);
size_t ${p}_wire_encode_json(uint8_t *message, size_t capacity, const uint8_t *id, uint32_t ttl_ms,
                             const float *row);

/* Decode a response. Return 1 if it answers the request with this `id` of 16 bytes, else 0. */
int ${p}_wire_decode_cbor(const uint8_t *message, size_t size, const uint8_t *id,
                          ${p}_wire_response *response);
int ${p}_wire_decode_json(const uint8_t *message, size_t size, const uint8_t *id,
                          ${p}_wire_response *response);

/* -- one request at a time, with its id, deadline and retry -------------------------------------- */

/* Publish a message on gw/v1/<device>/req with QoS 1; return 1 if the client accepted it, else 0. */
typedef int (*${p}_wire_publish)(const uint8_t *message, size_t size, void *context);
/* Fill `bytes` with random bytes from the chip or the operating system. */
typedef void (*${p}_wire_random)(uint8_t *bytes, size_t size, void *context);

enum {
    ${P}_WIRE_IDLE,     /* no request was sent */
    ${P}_WIRE_WAITING,  /* no response yet: poll again */
    ${P}_WIRE_ANSWERED, /* `response` holds the answer */
    ${P}_WIRE_REFUSED,  /* `response` holds the error code: use the fallback */
    ${P}_WIRE_TIMEOUT,  /* no response arrived before the deadline: use the fallback */
    ${P}_WIRE_UNSENT    /* no connection, busy workers, or an infinite value: use the fallback */
};

typedef struct {
    ${p}_wire_publish publish;
    ${p}_wire_random random;
    void *context;
    uint32_t sent_at, resent_at, retry_at, deadline; /* ms */
    uint32_t paused_until; /* ms; workers are busy and want no request before */
    uint32_t round_trip, deviation; /* smoothed, in sixteenths of a ms */
    uint16_t size;
    uint8_t state, backoff, n_copies_out;
    uint8_t plans_retry, was_resent, was_refused, is_paused, has_round_trip;
    uint8_t id[16];
    ${p}_wire_response response;
    uint8_t message[${P}_WIRE_BYTES]; /* the request, which a retry sends again */
} ${p}_wire;

void ${p}_wire_begin(${p}_wire *wire, ${p}_wire_publish publish, ${p}_wire_random random,
                     void *context);

/* Collect a request's values in `row`; acquire the values that no stage acquired. Return 0 if one is
   refused. */
int ${p}_wire_row(${p}_instance *instance, ${p}_acquire acquire, void *context, float *row);

/* Send a row; a request that is still waiting is abandoned. Then pass messages and the time. All three
   functions return the state. */
int ${p}_wire_offload(${p}_wire *wire, const float *row, uint32_t now_ms, uint32_t deadline_ms);
int ${p}_wire_receive(${p}_wire *wire, const uint8_t *message, size_t size, uint32_t now_ms);
int ${p}_wire_poll(${p}_wire *wire, uint32_t now_ms);

#ifdef __cplusplus
}
#endif
#endif
