/* Answers rows with the generated client over libmosquitto; writes an outcome for each row.
 *
 *   offload HOST PORT DEVICE < rows > outcomes
 *
 * A row is M_FEATURES floats. An outcome is five int32: state of the client (-1: a stage answered),
 * label, milliseconds, publications and received messages. */
#define _POSIX_C_SOURCE 200809L
#include "m_wire.h"

#include <mosquitto.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { DEADLINE_MS = 200, RECONNECT_MS = 20 };

static struct mosquitto *mqtt;
static m_wire wire;
static char requests[64], responses[64];
static int is_connected, n_published, n_received;

static uint32_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
}

static float acquire(int feature, void *row)
{
    return ((const float *)row)[feature];
}

static int publish(const uint8_t *message, size_t size, void *context)
{
    (void)context;
    if (!is_connected)
        return 0;
    n_published++;
    return mosquitto_publish(mqtt, 0, requests, (int)size, message, 1, 0) == MOSQ_ERR_SUCCESS;
}

static void random_bytes(uint8_t *bytes, size_t size, void *context)
{
    static FILE *source;
    (void)context;
    if (!source)
        source = fopen("/dev/urandom", "rb");
    if (!source || fread(bytes, 1, size, source) != size)
        exit(3);
}

static void on_connect(struct mosquitto *client, void *context, int code)
{
    (void)context;
    if (!code)
        mosquitto_subscribe(client, 0, responses, 1);
}

static void on_subscribe(struct mosquitto *client, void *context, int id, int n, const int *granted)
{
    (void)client, (void)context, (void)id, (void)n, (void)granted;
    is_connected = 1;
}

static void on_disconnect(struct mosquitto *client, void *context, int code)
{
    (void)client, (void)context, (void)code;
    is_connected = 0;
}

static void on_message(struct mosquitto *client, void *context, const struct mosquitto_message *m)
{
    (void)client, (void)context;
    n_received++;
    m_wire_receive(&wire, (const uint8_t *)m->payload, (size_t)m->payloadlen, now_ms());
}

static void work(void) /* read and write for a millisecond; connect again after a cut */
{
    static uint32_t tried_at;
    if (mosquitto_loop(mqtt, 1, 1) != MOSQ_ERR_SUCCESS) {
        is_connected = 0;
        if (now_ms() - tried_at >= RECONNECT_MS) {
            tried_at = now_ms();
            mosquitto_reconnect_async(mqtt);
        }
    }
}

int main(int n_arguments, char **arguments)
{
    static float row[M_FEATURES], request[M_WIRE_COLUMNS];
    static m_instance instance;
    if (n_arguments != 4)
        return 2;
    snprintf(requests, sizeof requests, "gw/v1/%s/req%s", arguments[3], M_WIRE_JSON ? "/json" : "");
    snprintf(responses, sizeof responses, "gw/v1/%s/rsp%s", arguments[3], M_WIRE_JSON ? "/json" : "");
    mosquitto_lib_init();
    mqtt = mosquitto_new(arguments[3], 1, 0);
    mosquitto_connect_callback_set(mqtt, on_connect);
    mosquitto_subscribe_callback_set(mqtt, on_subscribe);
    mosquitto_disconnect_callback_set(mqtt, on_disconnect);
    mosquitto_message_callback_set(mqtt, on_message);
    mosquitto_int_option(mqtt, MOSQ_OPT_TCP_NODELAY, 1);
    mosquitto_connect(mqtt, arguments[1], atoi(arguments[2]), 60);
    while (!is_connected)
        work();
    m_wire_begin(&wire, publish, random_bytes, 0);
    while (fread(row, sizeof row, 1, stdin)) {
        m_answer answer;
        int32_t outcome[5] = {-1, 0, 0, 0, 0};
        uint32_t begin = now_ms();
        n_published = n_received = 0;
        m_decide(&instance, acquire, row, &answer);
        outcome[1] = answer.label;
        if (answer.outcome == M_OFFLOAD && m_wire_row(&instance, acquire, row, request)) {
            outcome[0] = m_wire_offload(&wire, request, begin, DEADLINE_MS);
            while (m_wire_poll(&wire, now_ms()) == M_WIRE_WAITING)
                work();
            outcome[0] = wire.state;
            if (wire.state == M_WIRE_ANSWERED)
                outcome[1] = wire.response.label;
            if (wire.state == M_WIRE_UNSENT)
                work(); /* a board would go on to its next instance */
        }
        outcome[2] = (int32_t)(now_ms() - begin);
        outcome[3] = n_published;
        outcome[4] = n_received;
        fwrite(outcome, sizeof outcome, 1, stdout);
    }
    return 0;
}
